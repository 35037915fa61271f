"""What the bench counts as bytes of records: nothing of a step without a cut, everything else."""

import numpy as np
import pytest

from csd_lab.bench.drive.in_place import count_record_bytes
from firmware_agent.common.frames.frame_fields import PhaseSeconds, TensorSpec
from firmware_agent.common.frames.session_frames import Job, Ready, Slice, Tensors, Welcome
from firmware_agent.common.frames.step_frames import Activations, OwnRecords, Step, Stepped
from firmware_agent.common.slices import cut_slices
from firmware_agent.common.wire import AnyFrame, encode
from tests.support.fakes import hello

RECORD = np.random.default_rng(0).bytes(64)
WEIGHT = TensorSpec("w", "<f4", (30,))
JOB = Job("net.py:net", {}, None, 1.0, 0, 0.1, 0.0, 8)
PLAIN: list[AnyFrame] = [
    *(hello(), Welcome(), JOB, Ready(30), Tensors(1, [WEIGHT])),
    *(Step(1, OwnRecords(1, [(0, 8)]), 8), Stepped(1, 8, 0.5, PhaseSeconds(), 512)),
    *cut_slices(1, {"w": np.zeros(30, np.float32)}),
]
INDICES = Step(1, np.arange(8, dtype="<u4").tobytes(), 8)
CROSSING = Activations(1, 0, [])


def holding(record: bytes) -> list[Slice]:
    return list(cut_slices(1, {"w": np.frombuffer(b"\0" * 20 + record + b"\0" * 36, np.float32)}))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ([], 0),
        ([INDICES], 32),
        ([CROSSING], len(encode(CROSSING))),
        (list(cut_slices(1, {"0": np.zeros(4, np.float32)})), 16),
        (holding(RECORD), 64),
        (holding(RECORD[::-1]), 0),
    ],
)
def test_what_could_be_of_a_record_is_counted(more: list[AnyFrame], expected: int) -> None:
    assert count_record_bytes([*PLAIN, *more], [WEIGHT], [RECORD]) == expected


def test_tensors_that_the_model_does_not_have_are_counted() -> None:
    wrong = Tensors(1, [TensorSpec("w", "<f4", (31,))])
    assert count_record_bytes([wrong], [WEIGHT], []) == len(encode(wrong))
