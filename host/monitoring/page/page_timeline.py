"""The page's timeline: the last rounds or steps of those drives that matter, as few as can be read. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from csd_emu.perfmodel.timeline import AGGREGATE, HOST_READER, READ, RECEIVE, SEND, TAIL
from csd_emu.util.node_names import HOST
from host.core.records import RoundRecord
from host.monitoring.page.drive_history import DriveLog
from host.monitoring.page.page_state import TimelineNow
from host.monitoring.report.charts.gantt_choice import choose_spans

MOST_DRIVES = 16
_PHASES = (RECEIVE, READ, "forward", "backward", "update", "encode", SEND, TAIL, AGGREGATE)
_SLOW = 1.1


def make_timeline(rounds: Sequence[RoundRecord], drives: Mapping[str, DriveLog]) -> TimelineNow | None:
    """Return the timeline of the last of the rounds; None if they have no spans."""
    if not rounds:
        return None
    last = rounds[-1:] if rounds[-1].steps else rounds
    shown, hidden = _choose(last[-1], drives)
    kept = {*shown, HOST, HOST_READER}
    chosen = choose_spans(
        [msgspec.structs.replace(each, spans=[span for span in each.spans if span.device in kept]) for each in last]
    )
    if chosen is None:
        return None
    present = {span.device for span in chosen.spans}
    rows = [name for name in (*shown, HOST, HOST_READER) if name in present]
    found = {span.phase for span in chosen.spans}
    phases = [*(name for name in _PHASES if name in found), *sorted(found - set(_PHASES))]
    note = f"{len(shown)} of {len(shown) + hidden} drives: the late and the slowed, then who was done last."
    return TimelineNow(
        title=chosen.named,
        clock=chosen.clock,
        note=f"{chosen.note} {note if hidden else ''}".strip(),
        begins=list(chosen.begins),
        rows=list(dict.fromkeys(rows)),
        phases=phases,
        bars=[
            (rows.index(span.device), phases.index(span.phase), span.start_seconds, span.end_seconds)
            for span in chosen.spans
        ],
    )


def _choose(record: RoundRecord, drives: Mapping[str, DriveLog]) -> tuple[list[str], int]:
    """Return the drives to show, in the array's order, and how many are not."""
    ends: dict[str, float] = {}
    for span in record.spans:
        if span.device not in (HOST, HOST_READER):
            ends[span.device] = max(span.end_seconds, ends.get(span.device, 0.0))
    odd = _odd(drives)
    ranked = sorted(ends, key=lambda name: (name not in odd, -ends[name]))[:MOST_DRIVES]
    order = {name: number for number, name in enumerate(drives)}
    return sorted(ranked, key=lambda name: (order.get(name, len(order)), name)), len(ends) - len(ranked)


def _odd(drives: Mapping[str, DriveLog]) -> Collection[str]:
    return {name for name, log in drives.items() if log.straggler or (log.slowdown or 1.0) > _SLOW}
