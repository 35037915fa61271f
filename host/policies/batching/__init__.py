"""Batch sizes for unequal devices: chosen before training (STANNIS), and kept right while it runs (HyperTune). Pure."""

from host.core.tuning.batch_tuner import Batches, BatchTuner, Floats, Retune
from host.core.tuning.speed_table import SpeedTable
from host.policies.batching.fixed import FixedBatches

__all__ = ["BatchTuner", "Batches", "FixedBatches", "Floats", "Retune", "SpeedTable"]
