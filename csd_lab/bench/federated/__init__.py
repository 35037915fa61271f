"""Bench `federated`: what a target costs with each aggregation strategy, on records dealt out unevenly."""
