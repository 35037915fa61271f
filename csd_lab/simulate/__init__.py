"""Synchronous training by timeline and power model alone: no process, no training, any number of drives."""
