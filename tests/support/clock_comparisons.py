"""Runs on the clocks ``counted`` and ``sampled``, and comparisons of them, that nobody ran."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import save_file

from csd_lab.clocks.clock_comparison import ARRAY, ClockComparison, ComparedSeconds, compare_runs
from csd_lab.clocks.clock_runs import ClockRun, RunClock
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.records import EventKind, EventRecord, RetuneRecord, RoundRecord, StepRecord
from host.core.sampling.sampling_record import SamplingRecord
from host.monitoring.run_directory import RECORDS_FILE, WEIGHTS_FILE
from tests.support.records import device_round, round_record

ERROR = 0.01


def comparison(name: str, drive_error: float, array_error: float, **fields: Any) -> ClockComparison:
    def seconds(of: str, error: float) -> ComparedSeconds:
        return ComparedSeconds(of=of, counted_seconds=1.0, sampled_seconds=1 + error, interval_seconds=0.01)

    usual: dict[str, Any] = {
        "mode": "sync",
        "core_model": "cycles",
        "rounds": 1,
        "more_rounds": [0, 0],
        "steps": 10,
        "sampling": SamplingRecord(counted_steps=4, steps=40, error=0.01, start_share=0.0),
        "counted_decisions": [],
        "sampled_decisions": [],
        "equal_decisions": 0,
        "decisions": 0,
        "weights_difference": None,
        "counted_weights_difference": 0.0,
        "counted_wall_seconds": 100.0,
        "sampled_wall_seconds": 30.0,
        "load_averages": [1.0, 1.0],
        "sampled_notes": [],
    }
    errors = [seconds("csd-00", drive_error), seconds(ARRAY, array_error)]
    return ClockComparison(job=name, array="lab", seconds=errors, **usual | fields)


def run_of(
    folder: Path, clock: RunClock, seconds: Sequence[float], weights: float = 1.0, batch: int = 32, note: str = ""
) -> ClockRun:
    """A run directory with rounds of one drive of these seconds, retuned in its first step."""
    sampling = SamplingRecord(counted_steps=1, steps=2, error=ERROR, start_share=0.0) if clock == "sampled" else None
    records: list[RoundRecord | EventRecord] = [
        round_record(
            [device_round("csd-00", 64, PhaseSeconds(forward=each), clock=clock)],
            round=number,
            sampling=sampling,
            steps=[StepRecord(step=number, loss=1.0, learning_rate=0.1, array_seconds=each)],
            retunes=[RetuneRecord(step=2, reason="", before={}, after={"csd-00": batch})] if number == 2 else [],
        )
        for number, each in enumerate(seconds, start=1)
    ]
    if note:
        records.append(EventRecord("csd-00", EventKind.NOTE, note))
    directory = folder / clock
    directory.mkdir(parents=True)
    (directory / RECORDS_FILE).write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in records))
    save_file({"w": np.full(3, weights, np.float32)}, directory / WEIGHTS_FILE)
    return ClockRun(clock, directory, 100.0 if clock == "counted" else 20.0, 1.0)


def compared(*runs: ClockRun) -> ClockComparison:
    return compare_runs("job", "array", "cycles", {run.clock: run for run in runs})
