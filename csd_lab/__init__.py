"""Experiments on the product: benchmarks, reproductions, simulations and generators of its documents."""
