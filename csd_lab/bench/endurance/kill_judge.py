"""Judge of a run in which something was killed, by its records and weights alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from host.core.records import StepRecord

TARGETS = ("host", "drive", "vm", "virtqemud", "server")
NATIVE_TARGETS = ("host", "drive", "server")
MOMENTS = ("boot", "round", "checkpoint", "report")
# After these a run goes on, or is resumed, with all that it had: its weights must be those of the undisturbed one.
SAME_WEIGHTS = frozenset({"host", "virtqemud"})


@dataclass(frozen=True)
class Aim:
    """What is killed and when: a target, a moment, and how far into it (a round, and a share of its time)."""

    target: str
    moment: str
    round: int
    fraction: float


def draw_aims(count: int, targets: Sequence[str], rounds: int, draw: Any) -> list[Aim]:
    """Return so many aims: targets and moments by turns, the rest from the generator `draw` (`random.Random`)."""
    return [
        Aim(
            targets[number % len(targets)],
            MOMENTS[number // len(targets) % len(MOMENTS)],
            draw.randrange(1, rounds),
            draw.random(),
        )
        for number in range(count)
    ]


def first_change(steps: Sequence[StepRecord], whole: Sequence[StepRecord]) -> tuple[StepRecord, StepRecord] | None:
    """Return the first step that was not as in the undisturbed run, and how it was there; None if all are alike.

    Steps after it differ anyway, since they begin with other weights.
    """
    known = {step.step: step for step in whole}
    for step in sorted(steps, key=lambda each: each.step):
        like = known.get(step.step)
        if like is not None and _parts(step) != _parts(like):
            return step, like
    return None


def says_so(step: StepRecord, like: StepRecord) -> bool:
    """Return whether a step's record says that it is another than the undisturbed one: mixed, late, or others there."""
    present = [] if step.servers is None else step.servers.present
    before = [] if like.servers is None else like.servers.present
    missing = {part.device for part in like.devices} - {part.device for part in step.devices}
    return bool(step.mixed or step.lost or step.late or missing or present != before)


def judge(trials: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the figures of all trials (see `csd_lab.bench.endurance.bench_kill.run`)."""
    same = [trial["difference"] for trial in trials if trial["target"] in SAME_WEIGHTS]
    changed = [trial["recorded"] for trial in trials if trial["recorded"] is not None]
    return {
        "runs_lost": float(sum(not trial["ended"] or not trial["finite"] for trial in trials)),
        "rounds_lost_max": float(max((trial["rounds_lost"] for trial in trials), default=0)),
        "weights_difference": max(same, default=0.0),
        "mixed_recorded": sum(changed) / len(changed) if changed else 1.0,
        "steps_changed": float(len(changed)),
        "killed": float(sum(trial["killed"] > 0 for trial in trials)),
    }


def _parts(step: StepRecord) -> tuple[float, list[tuple[str, int]]]:
    return step.loss, [(part.device, part.batch_size) for part in step.devices]
