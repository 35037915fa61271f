"""The log of a run."""

import logging
import math

import msgspec
import pytest

from host.monitoring.run_log import RunLog
from tests.support.records import array_rounds


@pytest.mark.parametrize(
    ("accuracy", "told"), [(0.5, "round 1: accuracy 0.5000 after"), (math.nan, "round 1: loss 0.2500 after")]
)
def test_a_round_is_told_by_its_accuracy_or_its_loss(
    accuracy: float, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    (record,) = array_rounds(1, ("csd-00",))
    with caplog.at_level(logging.INFO):
        RunLog().add_round(msgspec.structs.replace(record, accuracy=accuracy, test_loss=0.25))
    assert told in caplog.text
