"""Federated rounds: what a strategy says to drives, and what of their answers it sees."""
