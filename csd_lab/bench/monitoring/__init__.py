"""Benches of metrics and the live page."""
