"""The device timeline: who did what when, in the last rounds or steps, as far as can be read. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

from csd_emu.perfmodel.timeline import AGGREGATE, HOST_READER, READ, RECEIVE, SEND, TAIL, Span
from csd_emu.util.node_names import HOST
from host.core.records import RoundRecord
from host.core.run_stats import RunStats

MOST_BARS, _MOST_ROUNDS, _MOST_STEPS = 900, 3, 4
# Colour and pattern of each phase, in the order in which a drive does them.
PHASES = {
    RECEIVE: ("s1", ""),
    READ: ("s6", "|"),
    "forward": ("s3", ""),
    "backward": ("s2", "/"),
    "update": ("s4", "x"),
    "encode": ("s8", "+"),
    SEND: ("s5", "\\"),
    TAIL: ("s3", "-"),
    AGGREGATE: ("s7", "-"),
}
_OTHER = ("muted", ".")


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Bars of rows over the array's seconds.

    Attributes:
        title: such as ``steps 5 to 8``.
        clock: of the array's seconds.
        note: what else a reader must know, or empty.
        caption: below it; the note is part of it.
        told: the timeline in words, for who cannot see it.
        begins: when its rounds or steps begin, in array seconds.
        rows: names of drives, from above.
        phases: names of phases, in the order in which a drive does them.
        looks: colour and pattern of each phase.
        bars: row, phase, begin and end in array seconds.
    """

    title: str
    clock: str
    note: str
    caption: str
    told: str
    begins: list[float]
    rows: list[str]
    phases: list[str]
    looks: list[tuple[str, str]]
    bars: list[tuple[int, int, float, float]]


class _Part(NamedTuple):
    """A round or a step: its number, its beginning in array seconds, and its spans by their beginning."""

    number: int
    begin_seconds: float
    spans: Sequence[Span]


def make_timeline(rounds: Sequence[RoundRecord], drives: Sequence[str], note: str = "") -> Timeline | None:
    """Return the timeline of `drives` and the host in the last of the rounds; None if they have no spans.

    It has three rounds, or four steps of the last round, or as few as can be read, but at least one.
    """
    order = list(dict.fromkeys([*drives, HOST, HOST_READER]))
    last = [record for record in rounds if record.spans][-_MOST_ROUNDS:]
    stepped = bool(last and last[-1].steps)
    rounds_shown = [_Part(record.round, record.start_seconds, _spans(record, order)) for record in last]
    parts = _choose(_steps(last[-1], order) if stepped else rounds_shown)
    if not parts:
        return None
    unit, spans = "step" if stepped else "round", [span for part in parts for span in part.spans]
    notes = [f"The last of {parts[-1].number} steps."] if stepped and len(parts) < parts[-1].number else []
    if len(spans) > MOST_BARS:
        notes.append(f"Only the beginning of the {unit} is shown.")
    note = " ".join([*notes, note]).strip()
    spans = spans[:MOST_BARS]
    found, present = {span.phase for span in spans}, {span.device for span in spans}
    rows = [name for name in order if name in present]
    phases = [*(name for name in PHASES if name in found), *sorted(found - set(PHASES))]
    clock, numbers = RunStats.of(last[-1:] if stepped else last).clock, [part.number for part in parts]
    title = f"{unit} {numbers[0]}" if len(parts) == 1 else f"{unit}s {numbers[0]} to {numbers[-1]}"
    return Timeline(
        title=title,
        clock=clock,
        note=note,
        caption=f"What each device did when, in array seconds ({clock}); dotted lines: a {unit} begins. {note}".strip(),
        told=f"Timeline of {title} for {len(rows)} rows: {_tell_shares(spans)} of the time.",
        begins=[part.begin_seconds for part in parts],
        rows=rows,
        phases=phases,
        looks=[PHASES.get(phase, _OTHER) for phase in phases],
        bars=[
            (rows.index(span.device), phases.index(span.phase), span.start_seconds, span.end_seconds) for span in spans
        ],
    )


def _choose(parts: Sequence[_Part]) -> list[_Part]:
    """Return the last parts that have spans, not more than can be read."""
    chosen = [part for part in parts if part.spans][-_MOST_STEPS:]
    counts = accumulate(len(part.spans) for part in reversed(chosen))
    return chosen[-max(1, sum(count <= MOST_BARS for count in counts)) :]


def _steps(record: RoundRecord, rows: Sequence[str]) -> list[_Part]:
    """Return the steps of a round; a span is of the step in which its middle lies."""
    begins = list(accumulate((step.array_seconds for step in record.steps[:-1]), initial=record.start_seconds))
    spans: list[list[Span]] = [[] for _ in begins]
    for span in _spans(record, rows):
        spans[max(0, bisect_right(begins, (span.start_seconds + span.end_seconds) / 2) - 1)].append(span)
    return [_Part(step.step, begin, own) for step, begin, own in zip(record.steps, begins, spans, strict=True)]


def _spans(record: RoundRecord, rows: Sequence[str]) -> list[Span]:
    shown = set(rows)
    return sorted((span for span in record.spans if span.device in shown), key=lambda span: span.start_seconds)


def _tell_shares(spans: Iterable[Span]) -> str:
    """Return each phase's share of all the time shown, the largest first."""
    seconds: Counter[str] = Counter()
    for span in spans:
        seconds[span.phase] += span.seconds  # type: ignore[assignment]
    total = math.fsum(seconds.values()) or 1.0
    return ", ".join(f"{phase} {value / total:.0%}" for phase, value in seconds.most_common(8))
