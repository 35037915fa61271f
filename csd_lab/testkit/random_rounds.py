"""Random rounds of a synthetic run, for benches and simulations that only count records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from csd_emu.perfmodel.power import COMPONENTS
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.device_time import COUNTED
from host.core.records import DeviceRound, DeviceStep, RoundRecord, StepRecord
from host.core.summary import SYNC

STEPS = 4


def list_rounds(mode: str, names: Sequence[str], count: int, seed: int) -> Iterator[RoundRecord]:
    """Yield rounds in which every drive took part for its own random seconds, joules and bytes."""
    draw = np.random.default_rng(seed)
    for number in range(1, count + 1):
        seconds = draw.uniform(0.5, 2.0, (len(names), 4))
        joules = draw.uniform(1.0, 9.0, (len(names), len(COMPONENTS)))
        sizes = draw.integers(1_000, 1_000_000, (len(names), 3))
        parts = [
            _part(name, *values)
            for name, values in zip(
                names, zip(seconds.tolist(), joules.tolist(), sizes.tolist(), strict=True), strict=True
            )
        ]
        steps = (
            [_step(step + (number - 1) * STEPS, names, draw) for step in range(1, STEPS + 1)] if mode == SYNC else []
        )
        yield RoundRecord(
            round=number,
            clock=COUNTED,
            accuracy=1 - 1 / (number + 1),
            test_loss=1 / number,
            train_loss=1.1 / number,
            records_per_device_second=100.0,
            slowest_device_seconds=8.0,
            start_seconds=8.0 * (number - 1),
            array_seconds=8.0,
            wall_seconds=60.0,
            devices=parts,
            energy_joules={"host": {"idle": 100.0, "chassis": 50.0}},
            steps=steps,
        )


def _part(name: str, seconds: list[float], joules: list[float], sizes: list[int]) -> DeviceRound:
    return DeviceRound(
        device=name,
        clock=COUNTED,
        samples=64 * STEPS,
        steps=STEPS,
        batch_size=64,
        loss=0.5,
        stopwatch_seconds=PhaseSeconds(*seconds),
        device_seconds=PhaseSeconds(*seconds),
        read_seconds=seconds[0] / 100,
        receive_seconds=seconds[1] / 100,
        send_seconds=seconds[2] / 100,
        flash_read_bytes=sizes[0],
        sent_bytes=sizes[1],
        received_bytes=sizes[2],
        peak_memory_bytes=200_000_000 + sizes[0],
        energy_joules=dict(zip(COMPONENTS, joules, strict=True)),
    )


def _step(number: int, names: Sequence[str], draw: np.random.Generator) -> StepRecord:
    seconds = draw.uniform(0.5, 2.0, len(names)).tolist()
    return StepRecord(
        step=number,
        loss=1 / number,
        learning_rate=0.1,
        array_seconds=2.0,
        possible_records_per_second=100.0 * len(names),
        devices=[
            DeviceStep(device=name, batch_size=64, compute_seconds=value, expected_seconds=1.0, weight=1 / len(names))
            for name, value in zip(names, seconds, strict=True)
        ],
    )
