"""What agents have held in memory, and how long they computed, against what their tables expect."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.config.array_file import ArrayConfig
from csd_emu.util.node_names import HOST
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.shipped_code import ShippedCode
from host.config.sync_section import SyncSection
from host.core.records import DeviceRound, DeviceStep, EventKind
from host.policies.batching.device_speeds import device_classes
from host.training.sync.run_checks import OFF_STEPS, OFF_TABLE, TableWatch
from tests.support.sync import SHAPE, STORE

CONFIG = ArrayConfig.model_validate({"name": "lab", "devices": [{"profile": "newport", "count": 2}]})
CLASSES = device_classes(CONFIG, STORE.of(ShippedCode("digits_cnn"), SHAPE), SyncSection())


def part(device: str = "csd-00", samples: int = 32, peak_bytes: float = 0.0, clock: str = "counted") -> DeviceRound:
    none = PhaseSeconds()
    numbers: dict[str, Any] = {"samples": samples, "steps": 1, "batch_size": samples, "loss": 0.0}
    return DeviceRound(
        device=device,
        clock=clock,
        stopwatch_seconds=none,
        device_seconds=none,
        flash_read_bytes=0,
        sent_bytes=0,
        received_bytes=0,
        peak_memory_bytes=int(peak_bytes),
        **numbers,
    )


def told_by(*parts: DeviceRound) -> list[tuple[str, EventKind, str]]:
    told: list[tuple[str, EventKind, str]] = []
    watch = TableWatch(CLASSES, lambda *event: told.append(event))
    for each in parts:
        watch.look_at_memory([each])
    return told


@given(samples=st.integers(1, 512), share=st.floats(0.1, 3.0))
def test_it_is_said_when_a_tenth_more_was_held_than_the_table_expects(samples: int, share: float) -> None:
    expected = CLASSES["csd-00"].needed_bytes(samples)
    told = told_by(part(samples=samples, peak_bytes=int(share * expected)))
    assert bool(told) == (int(share * expected) > 1.1 * expected)


def test_it_is_said_once_of_each_device_and_names_the_remedy() -> None:
    much = 10 * CLASSES["csd-00"].needed_bytes(32)
    told = told_by(part(peak_bytes=much), part(peak_bytes=2 * much), part("csd-01", peak_bytes=much))
    assert [(device, what) for device, what, _ in told] == [("csd-00", EventKind.NOTE), ("csd-01", EventKind.NOTE)]
    assert "at 32 records" in told[0][2]
    assert "calibrate the model again" in told[0][2]


@pytest.mark.parametrize(
    "harmless",
    [
        *(part(peak_bytes=0), part("stranger", peak_bytes=1e12)),
        *(part(peak_bytes=1e12, clock=clock) for clock in ("wall", "modelled")),
    ],
    ids=["not read", "without a table", "wall", "modelled"],
)
def test_what_says_nothing_of_a_drives_memory_is_passed_over(harmless: DeviceRound) -> None:
    assert told_by(harmless) == []


def speeds_told(steps: Sequence[Sequence[float]]) -> list[str]:
    """What is said of steps in which drives took so many times their tables' seconds, beside a host that is quick."""
    told: list[str] = []
    watch = TableWatch({}, lambda device, kind, detail: told.append(detail))
    for factors in steps:
        names = [*(f"csd-{number:02d}" for number in range(len(factors))), HOST]
        seconds = [*factors, 0.001]
        watch.look_at_speeds(
            [
                DeviceStep(device=name, batch_size=4, compute_seconds=each, expected_seconds=1.0)
                for name, each in zip(names, seconds, strict=True)
            ]
        )
    return told


@given(factor=st.floats(0.01, 100), steps=st.integers(OFF_STEPS - 2, 3 * OFF_STEPS), drives=st.integers(1, 5))
def test_it_is_said_once_when_drives_are_for_long_as_slow_or_quick_as_no_table_says(
    factor: float, steps: int, drives: int
) -> None:
    told = speeds_told([[factor] * drives] * steps)
    assert bool(told) == (max(factor, 1 / factor) > OFF_TABLE and steps >= OFF_STEPS)
    assert len(told) <= 1
    way = "more" if factor > 1 else "less"
    assert all(f"taken {way} than" in text and f" {factor:.3g} times as long in the last" in text for text in told)
    assert all("csd-emu calibrate" in text for text in told)


@pytest.mark.parametrize(
    "steps",
    [
        [[2.0, 1.0, 1.0]] * 100,
        [[2.0] * 3] * (OFF_STEPS - 1) + [[1.0] * 3] + [[2.0] * 3] * (OFF_STEPS - 1),
        [[2.1, 1.0], [0.4, 1.0]] * 50,
        [[2.0] * 3, [0.5] * 3] * OFF_STEPS,
        [[]] * 100,
        [[0.0]] * 100,
    ],
    ids=["one of three", "with a break", "one of two", "one way and the other", "no drive", "no seconds"],
)
def test_what_is_no_sign_of_a_wrong_table_is_passed_over(steps: list[list[float]]) -> None:
    assert speeds_told(steps) == []
