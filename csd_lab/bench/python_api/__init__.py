"""Benches of the Python interface and of the command line."""
