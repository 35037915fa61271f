"""Strategies and tuners of the user's own: found by entry point or import path, and checked before anything starts."""
