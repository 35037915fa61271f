"""The frames that cross between host and drive, each a msgspec structure with bounded fields."""
