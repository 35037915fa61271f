"""SSH servers on loopback that stand in for real drives."""
