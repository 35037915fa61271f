"""Batch sizes for unequal devices: chosen before training (STANNIS), and kept right while it runs (HyperTune). Pure."""
