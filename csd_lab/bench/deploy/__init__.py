"""Benches of `csd-emu deploy`."""
