"""Batch sizes for unequal devices: chosen before training (STANNIS), and kept right while it runs (HyperTune). Pure."""

from host.tuning.base import Batches, Floats, Retune, Tuner
from host.tuning.fixed import FixedBatches
from host.tuning.speed import SpeedTable

__all__ = ["Batches", "FixedBatches", "Floats", "Retune", "SpeedTable", "Tuner"]
