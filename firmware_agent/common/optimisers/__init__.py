"""Optimisers of drives and host: classes of `torch.optim`, and those of the user's own."""
