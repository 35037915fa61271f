"""The host's part of a model that is cut."""
