"""Decisions that a user may replace; pure."""
