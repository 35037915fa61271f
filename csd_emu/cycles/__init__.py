"""Cycles of a Cortex-A53: a model of the core as a plugin of QEMU, and what it counts."""
