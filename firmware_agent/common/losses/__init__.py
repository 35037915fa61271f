"""Losses: what training minimises, as functions of a model's outputs and the records."""
