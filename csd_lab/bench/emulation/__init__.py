"""Benches of the emulated drive: its clock, image, memory and throttles."""
