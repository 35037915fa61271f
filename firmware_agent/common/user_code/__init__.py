"""Code of the user's that travels to drives."""
