"""Tests of `host.training.sampling`."""
