"""How many series Prometheus keeps of a synchronous run: counted in what the exporter says of one that never was."""

from __future__ import annotations

import functools

from firmware_agent.wire import PhaseSeconds
from host.bench.scrape import list_rounds
from host.device_time import COUNTED
from host.metrics.counting import DeviceFacts
from host.metrics.exposition import Exposition
from host.metrics.state import MetricsState, RunFacts
from host.records import EventRecord, What
from host.summary import SYNC

_PLAIN = "text/plain;version=0.0.4"


@functools.cache
def series_per_drive() -> tuple[int, int]:
    """Return how many series each drive adds, and how many there are beside: of the run and of its host."""
    few, more = _count(2), _count(12)
    per_drive = (more - few) // 10
    return per_drive, few - 2 * per_drive


def _count(drives: int) -> int:
    names = [f"csd-{number:02d}" for number in range(drives)]
    state = MetricsState(RunFacts("series", "qemu", "digits_cnn", SYNC, tuple(names)))
    for name in names:
        state.add_event(EventRecord(name, What.JOINED))
    hello = {"machine": "aarch64", "agent": "0.1.0", "torch": "2.9.1"}
    scales = dict.fromkeys(PhaseSeconds.__struct_fields__, 0.25)
    state.begin([DeviceFacts(name, "emulated", "newport", 4, COUNTED, scales, hello) for name in names], COUNTED)
    state.add_round(next(list_rounds(SYNC, names, 1, 0)))
    _, text = Exposition(state).render(_PLAIN, None)
    return sum(bool(line) and not line.startswith(b"#") for line in text.splitlines())
