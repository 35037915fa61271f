"""`csd-emu ci run`: a run's figures against a baseline, within bands (docs/ci.md)."""
