"""Bench of the flash model: against closed forms, and what it costs."""
