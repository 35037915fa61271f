"""What an evaluator judges does not change what a run begins with."""

import numpy as np

from firmware_agent.common.shipped_code import ShippedCode
from host.core.datasets import load_dataset
from host.core.evaluation import Evaluator


def test_weights_that_were_judged_are_not_those_that_a_run_begins_with() -> None:
    evaluator = Evaluator(ShippedCode("digits_cnn"), load_dataset("digits", 0), 0)
    before = evaluator.initial_weights()
    evaluator.evaluate({name: np.ones_like(array) for name, array in before.items()})
    after = evaluator.initial_weights()
    assert {name: array.tobytes() for name, array in after.items()} == {n: a.tobytes() for n, a in before.items()}
    after["0.weight"][...] = 0
    assert evaluator.initial_weights()["0.weight"].tobytes() == before["0.weight"].tobytes()
