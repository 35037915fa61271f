"""The device timeline: who did what when, of the last rounds or steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from csd_emu.perfmodel.timeline import AGGREGATE, READ, RECEIVE, SEND, TAIL, Span
from csd_emu.util.node_names import HOST
from host.core.records import RoundRecord
from host.monitoring.report.charts.gantt_choice import choose_spans
from host.monitoring.report.charts.svg import MUTED, NARROW, SERIES, SURFACE, WIDE, Chart, draw, printable

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
    TAIL: (SERIES[2], "---"),
}
_OTHER = (MUTED, "\\\\///")
_MOST_ROWS = 40
_ROW_PIXELS = 22.0


@dataclass(frozen=True)
class _Picture:
    """What is drawn: the bars, the rows from above, when rounds begin, and whose seconds these are."""

    spans: Sequence[Span]
    rows: Sequence[str]
    begins: Sequence[float]
    clock: str

    @property
    def phases(self) -> list[str]:
        """The phases that occur, those that are known first."""
        found = {span.phase for span in self.spans}
        return [*(phase for phase in PHASES if phase in found), *sorted(found - set(PHASES))]


def timeline_chart(rounds: Sequence[RoundRecord], devices: Sequence[str]) -> Chart | None:
    """Return the timeline of the last rounds; None if the records have no spans."""
    chosen = choose_spans(rounds)
    if chosen is None:
        return None
    spans, clock = chosen.spans, chosen.clock
    rows, hidden = _choose_rows(spans, devices)
    caption = f"What each device did when, in array seconds ({clock}); dotted lines: a {chosen.unit} begins."
    caption += chosen.note
    caption += f" {hidden} more drives are not shown." if hidden else ""
    told = f"Timeline of {chosen.named} for {len(rows)} rows: " + _tell_shares(spans)
    shown = [span for span in spans if span.device in rows]
    picture = _Picture(shown, rows, chosen.begins, clock)
    height = 74.0 + _ROW_PIXELS * len(rows)
    narrow = draw("timeline-narrow", told, (NARROW, height + 44.0), lambda figure: _paint(figure, picture, 3))
    wide = draw("timeline-wide", told, (WIDE, height), lambda figure: _paint(figure, picture, 8))
    return Chart("timeline", f"Device timeline, {chosen.named}", caption, narrow, wide)


def _choose_rows(spans: Sequence[Span], devices: Sequence[str]) -> tuple[list[str], int]:
    """Return the rows, drives in their order and then the host, and how many drives have found no place."""
    present = {span.device for span in spans}
    drives = [name for name in dict.fromkeys([*devices, *sorted(present - {HOST})]) if name in present]
    host = [HOST] if HOST in present else []
    return drives[:_MOST_ROWS] + host, len(drives[_MOST_ROWS:])


def _paint(figure: Figure, picture: _Picture, columns: int) -> None:
    axes = figure.subplots()
    for phase in picture.phases:
        for row, name in enumerate(picture.rows):
            mine = [span for span in picture.spans if (span.device, span.phase) == (name, phase)]
            if mine:
                bars = [(span.start_seconds, span.seconds) for span in mine]
                axes.broken_barh(bars, (row - 0.36, 0.72), **_look(phase))
    for begin in picture.begins:
        axes.axvline(begin, color=MUTED, linewidth=1, linestyle=":")
    axes.set_yticks(np.arange(len(picture.rows)), [printable(name, 14) for name in picture.rows])
    axes.set_ylim(len(picture.rows) - 0.4, -0.6)
    axes.set_xlim(min(picture.begins), max(span.end_seconds for span in picture.spans))
    axes.grid(visible=False)
    axes.set_xlabel(f"array seconds ({picture.clock})")
    axes.xaxis.set_major_locator(MaxNLocator(5 if columns < 4 else 12))
    keys = [Patch(**_look(phase), label=printable(phase, 14)) for phase in picture.phases]
    figure.legend(handles=keys, loc="outside upper left", ncols=columns, handlelength=1.8, columnspacing=1.2)


def _look(phase: str) -> dict[str, Any]:
    colour, hatch = PHASES.get(phase, _OTHER)
    return {"facecolor": colour, "hatch": hatch, "edgecolor": SURFACE, "linewidth": 0.3}


def _tell_shares(spans: Sequence[Span]) -> str:
    """Return each phase's share of all the time shown."""
    seconds: dict[str, float] = {}
    for span in spans:
        seconds[span.phase] = seconds.get(span.phase, 0.0) + span.seconds
    total = sum(seconds.values()) or 1.0
    ranked = sorted(seconds.items(), key=lambda item: -item[1])[:8]
    return ", ".join(f"{printable(phase, 14)} {value / total:.0%}" for phase, value in ranked) + " of the time."
