"""HyperTune and its baselines in simulation."""
