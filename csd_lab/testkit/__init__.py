"""Real servers and machines for tests."""
