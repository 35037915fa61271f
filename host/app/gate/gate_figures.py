"""The figures of a run as a gate takes them: medians over its rounds, so that one disturbance moves none of them.

A virtual drive now and then does work of its own in the middle of a step: in a short run such a moment can take several
per cent of all device time, and more often so on a crowded machine. What makes every round slower, as a slower agent or
net does, moves the median by all of it; what takes part in fewer than half of the rounds does not move it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from host.core.records import EventKind, EventRecord, RoundRecord, decode_record

# From so many rounds on a single disturbed one leaves the median among the undisturbed.
ENOUGH_ROUNDS = 5


def measure(rounds: Sequence[RoundRecord]) -> dict[str, float]:
    """Return figure -> value, by the names of `host.app.gate.gate_checks.KINDS`; 0 of what was not measured.

    Rounds without records say nothing of rates; `list_failures` names them.
    """
    trained = [record for record in rounds if record.records_per_device_second > 0]
    if not trained:
        accuracy = rounds[-1].accuracy if rounds else 0.0
        return {"accuracy": accuracy, "records_per_device_second": 0.0, "joules_per_record": 0.0}
    return {
        "accuracy": rounds[-1].accuracy,
        "records_per_device_second": statistics.median(record.records_per_device_second for record in trained),
        "joules_per_record": statistics.median(record.total_joules / record.samples for record in trained),
    }


def read_rounds(records: Path) -> tuple[list[RoundRecord], list[str]]:
    """Return the rounds in a run's records, and which drives were lost: its figures are then those of fewer drives."""
    rounds: list[RoundRecord] = []
    losses = []
    for line in records.read_bytes().splitlines():
        record = decode_record(line)
        if isinstance(record, RoundRecord):
            rounds.append(record)
        elif isinstance(record, EventRecord) and record.what is EventKind.LOST:
            losses.append(f"{record.device} was lost: {record.detail}")
    return rounds, losses


def list_failures(rounds: Sequence[RoundRecord], losses: Sequence[str]) -> list[str]:
    """Return why the figures are those of less than was asked for, however good they are.

    Args:
        rounds: of the run.
        losses: which drives were lost (see `read_rounds`); empty if that is meant.
    """
    failures = [f"{loss}; the figures are those of fewer drives" for loss in losses]
    if not rounds:
        return [*failures, "the run has no round"]
    idle = [str(record.round) for record in rounds if record.samples == 0]
    if idle:
        failures.append(f"{len(idle)} of {len(rounds)} rounds trained on nothing in time: {', '.join(idle)}")
    return failures


def list_doubts(rounds: Sequence[RoundRecord]) -> list[str]:
    """Return what makes the figures less sure than they could be."""
    if len(rounds) >= ENOUGH_ROUNDS:
        return []
    return [
        f"{len(rounds)} rounds: the figures are medians over rounds, and with fewer than {ENOUGH_ROUNDS} one "
        "disturbance in a drive can move them; for a gate give the job more, shorter rounds"
    ]
