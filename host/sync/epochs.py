"""Which records each device computes in a step, so that an epoch covers them all. Pure."""
