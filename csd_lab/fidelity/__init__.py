"""Distance between emulation and real drives."""
