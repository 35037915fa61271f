"""Benches of schedules, slices and credit."""
