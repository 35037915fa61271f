"""Code that a drive's agent and the host share: messages, shards, models, errors, units."""
