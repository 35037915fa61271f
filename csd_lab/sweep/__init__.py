"""Sweeps: a job trained with many values of its keys, over seeds."""
