"""Number of series that Prometheus keeps of a synchronous run: counted in the exporter's text for a synthetic one."""

from __future__ import annotations

import functools

from csd_lab.testkit.random_rounds import list_rounds
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.device_time import COUNTED
from host.core.records import EventKind, EventRecord
from host.core.summary import SYNC
from host.monitoring.metrics.exposition import Exposition
from host.monitoring.metrics.metrics_state import MetricsState
from host.monitoring.run_facts import DeviceFacts, RunFacts
from host.monitoring.run_listener import RunStart, show_round

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
        state.add_event(EventRecord(name, EventKind.JOINED))
    hello = {"machine": "aarch64", "agent": "0.1.0", "torch": "2.9.1"}
    scales = dict.fromkeys(PhaseSeconds.__struct_fields__, 0.25)
    facts = [DeviceFacts(name, "emulated", "newport", 4, COUNTED, scales, hello) for name in names]
    state.begin(RunStart(COUNTED, list_devices=lambda: facts))
    show_round([state], next(list_rounds(SYNC, names, 1, 0)))
    _, text = Exposition(state).render(_PLAIN, None)
    return sum(bool(line) and not line.startswith(b"#") for line in text.splitlines())
