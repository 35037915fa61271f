"""The best of all configurations of devices, and which trial to take next."""
