"""Where a training stands, and the servers that share it."""
