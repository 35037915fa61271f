"""Benches of csd-emu in CI and in containers."""
