"""The reference pages that are made from the code: ``python -m host.reference`` writes them to docs/reference."""
