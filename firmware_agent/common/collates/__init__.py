"""Collate functions: what makes the batch that model, loss and metrics take of the records as stored."""
