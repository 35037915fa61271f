"""Faults made on purpose in a drive: competing work, throttles, faults, and probes of their effect."""
