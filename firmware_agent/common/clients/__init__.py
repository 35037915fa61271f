"""Client programs: what drives do in a round in place of the built-in local training."""
