"""Benches of models that are cut."""
