"""Training in the drive: local steps of a round, and its end of synchronous steps."""
