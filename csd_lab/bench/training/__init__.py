"""Benches of training: rounds, gradients, STANNIS and HyperTune."""
