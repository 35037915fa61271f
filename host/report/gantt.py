"""The device timeline: who did what when, of the last rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from csd_emu.timeline import AGGREGATE, HOST, READ, RECEIVE, SEND, Span
from host.records import RoundRecord
from host.report.figures import total_run
from host.report.svg import MUTED, NARROW, SERIES, SURFACE, WIDE, Chart, draw, printable

# Colour and pattern of each phase, in the order in which a drive does them.
PHASES = {
    RECEIVE: (SERIES[0], ""),
    READ: (SERIES[5], "|||"),
    "forward": (SERIES[2], ""),
    "backward": (SERIES[1], "///"),
    "update": (SERIES[3], "xxx"),
    "encode": (SERIES[7], "+++"),
    SEND: (SERIES[4], "\\\\\\"),
    AGGREGATE: (SERIES[6], "---"),
}
_OTHER = (MUTED, "\\\\///")
_MOST_BARS, _MOST_ROWS, _MOST_ROUNDS = 900, 40, 3
_ROW_PIXELS = 22.0


def choose_rounds(rounds: Sequence[RoundRecord]) -> list[RoundRecord]:
    """Return the last rounds that have spans, at most three and not more than can be read, but at least one."""
    chosen: list[RoundRecord] = []
    bars = 0
    for record in reversed(rounds):
        bars += len(record.spans)
        if len(chosen) == _MOST_ROUNDS or (chosen and bars > _MOST_BARS):
            break
        if record.spans:
            chosen.insert(0, record)
    return chosen


def timeline_chart(rounds: Sequence[RoundRecord], devices: Sequence[str]) -> Chart | None:
    """Return the timeline of the last rounds; None if the records have no spans."""
    chosen = choose_rounds(rounds)
    spans = sorted((span for record in chosen for span in record.spans), key=lambda span: span.start_seconds)
    cut = len(spans) > _MOST_BARS
    spans = spans[:_MOST_BARS]
    if not spans:
        return None
    present = {span.device for span in spans}
    rows = [name for name in dict.fromkeys([*devices, *sorted(present - {HOST})]) if name in present]
    hidden = len(rows[_MOST_ROWS:])
    rows = [*rows[:_MOST_ROWS], *([HOST] if HOST in present else [])]
    clock = total_run(chosen).clock
    named = f"round {chosen[0].round}" if len(chosen) == 1 else f"rounds {chosen[0].round} to {chosen[-1].round}"
    caption = (
        f"What each drive did when, in array seconds ({clock}); dotted lines: a round begins."
        + (" Only the beginning of the round is shown." if cut else "")
        + (f" {hidden} more drives are not shown." if hidden else "")
    )
    told = f"Timeline of {named} for {len(rows)} rows: " + _tell_shares(spans)
    height = 74.0 + _ROW_PIXELS * len(rows)
    begins = [record.start_seconds for record in chosen]

    def paint(columns: int) -> Callable[[Figure], None]:
        return lambda figure: _paint(figure, spans, rows, begins, clock, columns)

    narrow = draw("timeline-narrow", told, (NARROW, height + 44.0), paint(3))
    wide = draw("timeline-wide", told, (WIDE, height), paint(8))
    return Chart("timeline", f"Device timeline, {named}", caption, narrow, wide)


def _paint(
    figure: Figure, spans: Sequence[Span], rows: Sequence[str], begins: Sequence[float], clock: str, columns: int
) -> None:
    axes = figure.subplots()
    position = {name: index for index, name in enumerate(rows)}
    shown = [span for span in spans if span.device in position]
    phases = [
        *(phase for phase in PHASES if any(span.phase == phase for span in shown)),
        *sorted({span.phase for span in shown} - set(PHASES)),
    ]
    for phase in phases:
        colour, hatch = PHASES.get(phase, _OTHER)
        for name, row in position.items():
            bars = [(span.start_seconds, span.seconds) for span in shown if span.device == name and span.phase == phase]
            if bars:
                axes.broken_barh(
                    bars, (row - 0.36, 0.72), facecolor=colour, hatch=hatch, edgecolor=SURFACE, linewidth=0.3
                )
    for begin in begins:
        axes.axvline(begin, color=MUTED, linewidth=1, linestyle=":")
    axes.set_yticks(np.arange(len(rows)), [printable(name, 14) for name in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(min(begins), max(span.end_seconds for span in spans))
    axes.grid(visible=False)
    axes.set_xlabel(f"array seconds ({clock})")
    axes.xaxis.set_major_locator(MaxNLocator(5 if columns < 4 else 12))
    keys = [
        Patch(
            facecolor=PHASES.get(phase, _OTHER)[0],
            hatch=PHASES.get(phase, _OTHER)[1],
            edgecolor=SURFACE,
            linewidth=0.3,
            label=printable(phase, 14),
        )
        for phase in phases
    ]
    figure.legend(handles=keys, loc="outside upper left", ncols=columns, handlelength=1.8, columnspacing=1.2)


def _tell_shares(spans: Sequence[Span]) -> str:
    """Return each phase's share of all the time shown."""
    seconds: dict[str, float] = {}
    for span in spans:
        seconds[span.phase] = seconds.get(span.phase, 0.0) + span.seconds
    total = sum(seconds.values()) or 1.0
    ranked = sorted(seconds.items(), key=lambda item: -item[1])[:8]
    return ", ".join(f"{printable(phase, 14)} {value / total:.0%}" for phase, value in ranked) + " of the time."
