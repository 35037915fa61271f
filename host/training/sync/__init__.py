"""Synchronous training: every step, drives push gradients, the host steps the optimiser, drives pull weights."""
