"""Bundles: what is copied to a real drive."""
