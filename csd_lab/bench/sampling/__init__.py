"""Bench of the clock ``sampled``: jobs that are run counted and sampled."""
