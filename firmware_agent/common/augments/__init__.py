"""Augmentations: what changes the records of a batch at random, in training alone."""
