"""The verbs of `csd-emu deploy`."""
