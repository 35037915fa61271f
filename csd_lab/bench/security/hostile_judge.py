"""Figures of the runs with a hostile drive. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

import msgspec

from csd_lab.bench.security.hostile_behaviour import Behaviour
from host.core.records import EventKind, EventRecord

# Events that say what a drive did wrong, or that it is not counted on any more.
_NAMING = (
    EventKind.REJECTED,
    EventKind.SET_ASIDE,
    EventKind.LOST,
    EventKind.FAILED,
    EventKind.REFUSED,
    EventKind.DIVERGING,
)
# An honest drive with one of these was driven out of the run.
_DRIVEN_OUT = (EventKind.LOST, EventKind.FAILED, EventKind.SET_ASIDE)
# A flipped sign that nobody was set aside for.
NEVER = 1e9


class CaseOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        mode: of the job.
        behaviour: of the hostile drive.
        seed: of the job.
        strategy: of a federated job.
        error: why the run ended before its time; empty if it did not.
        finite: whether all final weights are finite.
        accuracy: at the end, 0 to 1.
        reference: of the run without the hostile drive; None of a synchronous job.
        seconds: wall time.
        events: what the run told.
    """

    mode: str
    behaviour: Behaviour
    seed: int
    strategy: str
    error: str
    finite: bool
    accuracy: float
    reference: float | None
    seconds: float
    events: list[EventRecord]

    @property
    def lost(self) -> bool:
        """Whether the run did not come to its end with weights that can be used."""
        return bool(self.error) or not self.finite

    @property
    def name(self) -> str:
        """Mode, behaviour and seed."""
        return f"{self.mode} {self.behaviour} {self.seed}"

    def driven_out(self, hostile: str) -> set[str]:
        """Return the honest drives that were driven out."""
        return {event.device for event in self.events if event.what in _DRIVEN_OUT} - {hostile, "host"}

    def named(self, hostile: str) -> bool:
        """Whether an event says that something is wrong with the hostile drive."""
        return any(event.device == hostile and event.what in (*_NAMING, EventKind.NOTE) for event in self.events)

    def set_aside_step(self, hostile: str) -> float:
        """Return the step by which the hostile drive was set aside: that of the last refusal before; else `NEVER`."""
        step = NEVER
        for event in self.events:
            if event.device == hostile and (found := re.search(r"\bstep (\d+)", event.detail)):
                step = float(found[1])
            if event.device == hostile and event.what == EventKind.SET_ASIDE:
                return step
        return NEVER


def judge(outcomes: Sequence[CaseOutcome], hostile: str) -> dict[str, float]:
    """Return the figures; `hostile` is the name of the drive."""
    differences = [case.accuracy - case.reference for case in outcomes if case.reference is not None and not case.lost]
    flips = [case for case in outcomes if case.mode == "sync" and case.behaviour is Behaviour.SIGN_FLIP]
    return {
        "cases": len(outcomes),
        "runs_lost": sum(case.lost for case in outcomes),
        "honest_drives_lost": sum(len(case.driven_out(hostile)) for case in outcomes),
        "final_accuracy": min(differences, default=math.nan),
        "unnamed": sum(not case.named(hostile) for case in outcomes),
        "sign_flip_steps": max((case.set_aside_step(hostile) for case in flips), default=math.nan),
    }


def short_events(events: Iterable[EventRecord], hostile: str, most: int = 12) -> list[str]:
    """Return the first events that are of drives' conduct, as text, for a report."""
    telling = [event for event in events if event.what in _NAMING or event.device in ("host", hostile)]
    return [f"{event.device}: {event.what} {event.detail}"[:300] for event in telling[:most]]
