"""Benches of the choice of devices."""
