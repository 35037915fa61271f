"""Training over several servers: beside each one's host a thin worker adds up with the others by torch.distributed."""
