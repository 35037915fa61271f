import numpy as np
import pytest

from firmware_agent.common.shipped_code import ShippedCode
from host.core.datasets import load_dataset
from host.core.evaluation import Evaluator
from host.training.sync.run_transfers import make_overlap

NORMED = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10))
"""


@pytest.mark.parametrize(("batch_norm", "buffers"), [("device", 40), ("frozen", 0)])
def test_what_is_exchanged_is_what_is_trained_and_what_is_averaged(batch_norm: str, buffers: int) -> None:
    evaluator = Evaluator(ShippedCode("normed.py:build", NORMED), load_dataset("digits", 0), 0)
    weights = evaluator.initial_weights()
    composer = make_overlap(evaluator, weights, batch_norm, 1024, False)
    parameters = 4 * (36 + 4 + 4 + 4 + 1440 + 10)
    assert sum(composer.exchanged.values()) == parameters + buffers
    assert [layer.name for layer in composer.layers] == ["0", "1", "3"]
    assert (composer.block_bytes, composer.barrier) == (1024, False)
    wide = {name: array.astype(np.float64) for name, array in weights.items()}
    assert sum(make_overlap(evaluator, wide, "frozen", None, True).exchanged.values()) == 2 * parameters
