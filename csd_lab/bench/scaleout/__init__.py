"""Benches of many servers and many drives."""
