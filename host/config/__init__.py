"""Job files: their sections, checked, and the user's own code that they name."""
