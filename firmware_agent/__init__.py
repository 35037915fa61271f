"""What runs in the drive, and the leaf modules that everyone shares."""

__version__ = "0.1.0"
