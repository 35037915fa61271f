"""Runs beside each other: which there are, and how they compare."""
