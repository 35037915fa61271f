"""Health of a real drive, as its own NVMe logs tell it."""
