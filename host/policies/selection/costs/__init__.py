"""What a configuration of devices costs by the model: seconds, energy, records."""
