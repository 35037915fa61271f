"""What `bench kill` expects of a run: its figures from records and weights alone."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_lab.bench.endurance.killed_runs import (
    MOMENTS,
    NATIVE_TARGETS,
    SAME_WEIGHTS,
    TARGETS,
    draw_aims,
    first_change,
    judge,
    says_so,
)
from host.core.records import DeviceStep, ServersRecord, StepRecord


def step(number: int, loss: float = 1.0, devices: str = "ab", **fields: Any) -> StepRecord:
    parts = [DeviceStep(device=name, batch_size=16, compute_seconds=1.0) for name in devices]
    return StepRecord(step=number, loss=loss, learning_rate=0.1, array_seconds=1.0, devices=parts, **fields)


def servers(*present: str) -> ServersRecord:
    return ServersRecord(
        server="a", present=list(present), samples=1, own_seconds=1, slowest_seconds=1, reduce_seconds=0, sent_bytes=0
    )


@given(st.integers(1, 60), st.sampled_from([TARGETS, NATIVE_TARGETS]), st.integers(0, 1 << 32))
def test_aims_are_spread_and_repeat_with_their_seed(count: int, targets: tuple[str, ...], seed: int) -> None:
    aims = draw_aims(count, targets, 5, random.Random(seed))
    assert aims == draw_aims(count, targets, 5, random.Random(seed))
    told = Counter(aim.target for aim in aims)
    assert max(told.values()) - min(told[target] for target in targets) <= 1
    assert all(1 <= aim.round < 5 and 0.0 <= aim.fraction < 1.0 for aim in aims)
    if count >= len(targets) * len(MOMENTS):
        assert {(aim.target, aim.moment) for aim in aims} == {(one, two) for one in targets for two in MOMENTS}


def test_the_first_step_that_differs_is_found() -> None:
    whole = [step(1), step(2), step(3)]
    assert first_change(whole, whole) is None
    assert first_change([step(1)], whole) is None  # it ended early: nothing that it did was changed
    changed = first_change([step(1), step(2, loss=2.0), step(3, loss=5.0)], whole)
    assert changed is not None
    assert changed[0].step == 2
    fewer = first_change([step(1), step(3, devices="a")], whole)
    assert fewer is not None
    assert fewer[0].step == 3


@pytest.mark.parametrize(
    ("changed", "like", "said"),
    [
        (step(1, 2.0), step(1), False),
        (step(1, 2.0, mixed=True), step(1), True),
        (step(1, 2.0, lost=["b"]), step(1), True),
        (step(1, 2.0, late=["b"]), step(1), True),
        (step(1, 2.0, "a"), step(1), True),
        (step(1, 2.0, servers=servers("a", "b")), step(1, servers=servers("a", "b")), False),
        (step(1, 2.0, servers=servers("a")), step(1, servers=servers("a", "b")), True),
    ],
)
def test_a_step_says_that_it_is_another(changed: StepRecord, like: StepRecord, said: bool) -> None:
    assert says_so(changed, like) == said


def trial(target: str, **fields: Any) -> dict[str, Any]:
    usual = {"ended": True, "finite": True, "rounds_lost": 0, "difference": 0.0, "recorded": None, "killed": 1}
    return {"target": target} | usual | fields


def test_the_figures_are_those_of_the_worst() -> None:
    well = [trial(target) for target in TARGETS]
    assert judge(well) == {
        "runs_lost": 0.0,
        "rounds_lost_max": 0.0,
        "weights_difference": 0.0,
        "mixed_recorded": 1.0,
        "steps_changed": 0.0,
        "killed": 5.0,
    }
    bad = [
        trial("host", difference=0.5),
        trial("drive", difference=9.0, recorded=True, rounds_lost=2),
        trial("server", recorded=False),
        trial("vm", ended=False),
        trial("vm", finite=False, killed=0),
    ]
    assert judge(well + bad) == {
        "runs_lost": 2.0,
        "rounds_lost_max": 2.0,
        "weights_difference": 0.5,
        "mixed_recorded": 0.5,
        "steps_changed": 2.0,
        "killed": 9.0,
    }
    assert {"host", "virtqemud"} == SAME_WEIGHTS
