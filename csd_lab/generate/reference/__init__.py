"""Reference pages made from the code; ``python -m csd_lab.generate.reference`` writes them to docs/reference."""
