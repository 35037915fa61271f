"""What agents have held in memory, against what their tables expect."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.config.array_file import ArrayConfig
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.models import ModelSpec
from host.config.sync_section import SyncSection
from host.core.records import DeviceRound, EventKind
from host.policies.batching.device_speeds import device_classes
from host.training.sync.run_checks import MemoryWatch
from tests.support.sync import SHAPE, STORE

CONFIG = ArrayConfig.model_validate({"name": "lab", "devices": [{"profile": "newport", "count": 2}]})
CLASSES = device_classes(CONFIG, STORE.of(ModelSpec("digits_cnn"), SHAPE), SyncSection())


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
    watch = MemoryWatch(CLASSES, lambda *event: told.append(event))
    for each in parts:
        watch.look([each])
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
