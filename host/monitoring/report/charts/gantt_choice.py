"""Rounds or steps that the device timeline shows: the last ones, as far as can be read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from csd_emu.perfmodel.timeline import Span
from host.core.records import RoundRecord
from host.core.run_stats import RunStats

MOST_BARS, _MOST_ROUNDS, _MOST_STEPS = 900, 3, 4


@dataclass(frozen=True)
class ChosenSpans:
    """A part of a run.

    Attributes:
        spans: by their beginning.
        begins: when its rounds or steps begin, in array seconds.
        unit: what these are, ``round`` or ``step``.
        named: such as ``rounds 3 to 5``.
        clock: of the array's seconds.
        note: what else a reader must know; empty, or a sentence with a space before it.
    """

    spans: Sequence[Span]
    begins: Sequence[float]
    unit: str
    named: str
    clock: str
    note: str = ""


def choose_spans(rounds: Sequence[RoundRecord]) -> ChosenSpans | None:
    """Return the last rounds or steps that have spans, a few, but at least one; None if the records have no spans."""
    chosen = choose_rounds(rounds)
    if not chosen:
        return None
    last = chosen[-1]
    return _choose_steps(last) if last.steps else _join(chosen)


def choose_rounds(rounds: Sequence[RoundRecord]) -> list[RoundRecord]:
    """Return the last rounds that have spans, at most three and not more than can be read, but at least one."""
    chosen: list[RoundRecord] = []
    bars = 0
    for record in reversed(rounds):
        bars += len(record.spans)
        if len(chosen) == _MOST_ROUNDS or (chosen and bars > MOST_BARS):
            break
        if record.spans:
            chosen.insert(0, record)
    return chosen


def _join(rounds: Sequence[RoundRecord]) -> ChosenSpans:
    every = _sorted(span for record in rounds for span in record.spans)
    note = " Only the beginning of the round is shown." if len(every) > MOST_BARS else ""
    begins = [record.start_seconds for record in rounds]
    named = _name("round", rounds[0].round, rounds[-1].round)
    return ChosenSpans(every[:MOST_BARS], begins, "round", named, RunStats.of(rounds).clock, note)


def _choose_steps(record: RoundRecord) -> ChosenSpans:
    """Return the last steps of a round; a span is of the step in which its middle lies."""
    every, steps = _sorted(record.spans), record.steps
    begins = list(accumulate((step.array_seconds for step in steps[:-1]), initial=record.start_seconds))
    count = 1
    for more in range(2, min(_MOST_STEPS, len(steps)) + 1):
        if len(_behind(every, begins[-more])) > MOST_BARS:
            break
        count = more
    spans = _behind(every, begins[-count])
    note = f" The last of {steps[-1].step} steps." if count < steps[-1].step else ""
    note += " Only the beginning of the step is shown." if len(spans) > MOST_BARS else ""
    named = _name("step", steps[-count].step, steps[-1].step)
    return ChosenSpans(spans[:MOST_BARS], begins[-count:], "step", named, RunStats.of([record]).clock, note)


def _behind(spans: Sequence[Span], begin_seconds: float) -> list[Span]:
    return [span for span in spans if (span.start_seconds + span.end_seconds) / 2 >= begin_seconds]


def _sorted(spans: Iterable[Span]) -> list[Span]:
    return sorted(spans, key=lambda span: span.start_seconds)


def _name(unit: str, first: int, last: int) -> str:
    return f"{unit} {first}" if first == last else f"{unit}s {first} to {last}"
