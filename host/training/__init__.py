"""Training: federated, synchronous, with a split model, on several servers."""
