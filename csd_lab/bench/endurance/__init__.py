"""Benches of runs that are killed, and of runs that do not end."""
