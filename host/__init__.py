"""What runs on the server that holds the drives."""
