"""From what devices did to how long a step of the array takes. Numbers in, numbers out.

A device's sequence in a step: receive over the link, read from flash, compute phase by phase, send over the link. The
host's own work follows when the last send has arrived.

The host may train too, as a participant called ``host``. It gets no weights and sends no gradient, and its records come
from the drives by plain NVMe reads, beside the link of messages. It reads ahead: while a step lasts, the records of the
next one come, so of reading and computing only the longer one counts.

The link is full duplex. Each direction of the host's side, if it is shared, serves all transfers in progress at equal
shares of its bandwidth and is never idle while there is one (processor sharing). The device's own side runs beside it,
for the host buffers: a transfer ends when both have carried it. A device's latency lies between it and the host's side:
before that in the send direction, behind it in the receive direction.

So the seconds of a step never fall when a byte count, a phase or a latency grows or a bandwidth shrinks:

1. Receiving. Starts are given, and each transfer's service up to a moment is the integral of bandwidth / n, with n the
   transfers in progress. Let one transfer grow or the bandwidth shrink. Were some transfer the first to end earlier
   than before, then up to that moment every transfer of before would still be in progress, n at least what it was, and
   its service at most what it was: it could not have ended. So no transfer ends earlier.
2. Reading and computing add to a device's own time alone. So no send begins earlier.
3. Sending. A link that never idles while it has work ends its last transfer at the maximum over t of t + (bytes that
   begin at t or later) / bandwidth. That falls in no begin and in no byte count. The own sides' ends each rise too.

It is not monotone in `start_seconds`: to begin later can leave the link to a device that computes for longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from csd_emu.perfmodel.sharing import check_numbers, share_link
from csd_emu.util.node_names import HOST
from firmware_agent.common.errors import ConfigurationError

# The host's end of its reads has a row of its own: it overlaps what the host computes.
HOST_READER = "host reader"
RECEIVE, READ, SEND, AGGREGATE = "receive", "read", "send", "aggregate"
COMMUNICATION = frozenset({RECEIVE, SEND})


@dataclass(frozen=True)
class Link:
    """The host's side of the link.

    Attributes:
        bytes_per_second: each way.
        latency_seconds: of every message, beside the device's own.
        shared: by all devices; else each device has this bandwidth for itself.
    """

    bytes_per_second: float
    latency_seconds: float
    shared: bool = True


@dataclass(frozen=True)
class Activity:
    """What one device does in one step.

    Attributes:
        device: its name, one activity each; ``host`` for the host's own part: it neither receives nor sends.
        receive_bytes: from the host.
        read_bytes: from flash; by the host, of its next step's records from the drives.
        read_operations: in so many reads, one after the other.
        phases: compute phase -> seconds, in order.
        send_bytes: to the host.
        flash_bytes_per_second: of the device, as are the next three; of the host, what its drives deliver together.
        flash_latency_seconds: of one read.
        link_bytes_per_second: its own side of the link, each way.
        link_latency_seconds: of one message.
        start_seconds: when its step begins.
    """

    device: str
    receive_bytes: int
    read_bytes: int
    read_operations: int
    phases: Mapping[str, float]
    send_bytes: int
    flash_bytes_per_second: float
    flash_latency_seconds: float
    link_bytes_per_second: float
    link_latency_seconds: float
    start_seconds: float = 0.0

    @property
    def read_seconds(self) -> float:
        """Time to read from flash."""
        return self.read_bytes / self.flash_bytes_per_second + self.read_operations * self.flash_latency_seconds

    @property
    def compute_seconds(self) -> float:
        """Sum of the compute phases."""
        return sum(self.phases.values())

    @property
    def work_seconds(self) -> float:
        """Reading and computing: one after the other in a drive, side by side on the host."""
        if self.device == HOST:
            return max(self.read_seconds, self.compute_seconds)
        return self.read_seconds + self.compute_seconds


@dataclass(frozen=True)
class Span:
    """Something that a device does from one moment to another; `bytes` of the link or of flash, else 0."""

    device: str
    phase: str
    start_seconds: float
    end_seconds: float
    bytes: int = 0

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.end_seconds - self.start_seconds


@dataclass(frozen=True)
class Composed:
    """A step of the array.

    Attributes:
        spans: of all devices, device by device in the order of the activities, then the host's.
        seconds: from 0 to the end of the step.
        finish_seconds: device -> when its send has arrived.
        exposed_seconds: device -> how long it did nothing but communicate; of the host, how long it only read.
    """

    spans: tuple[Span, ...]
    seconds: float
    finish_seconds: Mapping[str, float] = field(default_factory=dict)
    exposed_seconds: Mapping[str, float] = field(default_factory=dict)


def compose(activities: Sequence[Activity], link: Link, host_seconds: float = 0.0) -> Composed:
    """Return when each device does what in a step, and how long the step takes.

    Args:
        activities: one per device, and one of the host if it trains, in any order: it does not change the result.
        link: the host's side of the link.
        host_seconds: of the host's own work once the last send has arrived.

    Raises:
        ConfigurationError: a bandwidth is not positive, another number is negative or not finite, a device occurs
            twice, or the host is to receive or send.
    """
    _check(activities, link, host_seconds)
    begins = [activity.start_seconds for activity in activities]
    received = _transfer([activity.receive_bytes for activity in activities], begins, link)
    received = [
        _arrive(activity, activity.receive_bytes, begin, end, link, activity.link_latency_seconds)
        for activity, begin, end in zip(activities, begins, received, strict=True)
    ]
    ready = [end + act.work_seconds for act, end in zip(activities, received, strict=True)]
    # The device's latency comes first, so that a device far away never makes the shared side end earlier.
    entered = [
        moment + (activity.link_latency_seconds if activity.send_bytes else 0.0)
        for activity, moment in zip(activities, ready, strict=True)
    ]
    sent = _transfer([activity.send_bytes for activity in activities], entered, link)
    finish = [
        _arrive(activity, activity.send_bytes, begin, end, link, 0.0)
        for activity, begin, end in zip(activities, entered, sent, strict=True)
    ]
    spans = [
        span
        for activity, got, done, end in zip(activities, received, ready, finish, strict=True)
        for span in _spans(activity, got, done, end)
    ]
    last = max(finish, default=0.0)
    if host_seconds:
        spans.append(Span(HOST, AGGREGATE, last, last + host_seconds))
    names = [activity.device for activity in activities]
    exposed = [
        (got - begin) + (end - done) + _only_reads(activity)
        for activity, begin, got, done, end in zip(activities, begins, received, ready, finish, strict=True)
    ]
    return Composed(
        tuple(spans),
        last + host_seconds,
        dict(zip(names, finish, strict=True)),
        dict(zip(names, exposed, strict=True)),
    )


def shift(spans: Iterable[Span], seconds: float) -> tuple[Span, ...]:
    """Return the `spans` that much later: to put one step behind another."""
    return tuple(
        Span(span.device, span.phase, span.start_seconds + seconds, span.end_seconds + seconds, span.bytes)
        for span in spans
    )


def chrome_trace(spans: Iterable[Span], clock: str, process: str = "csd-emu") -> dict[str, Any]:
    """Return the spans in Chrome's trace format, which Perfetto and chrome://tracing show: one row per device.

    Times are microseconds of device time; `clock` says whose seconds these are.
    """
    rows: dict[str, int] = {}
    events = []
    for span in spans:
        row = rows.setdefault(span.device, len(rows) + 1)
        events.append(
            {
                "name": span.phase,
                "cat": "communication" if span.phase in COMMUNICATION else "work",
                "ph": "X",
                "ts": span.start_seconds * 1e6,
                "dur": span.seconds * 1e6,
                "pid": 1,
                "tid": row,
                "args": {"clock": clock, "bytes": span.bytes},
            }
        )
    names = [_metadata("process_name", 0, process)]
    names += [_metadata("thread_name", row, device) for device, row in rows.items()]
    return {"traceEvents": names + events, "displayTimeUnit": "ms", "otherData": {"clock": clock}}


def _metadata(kind: str, row: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": 1, "tid": row, "args": {"name": name}}


def _check(activities: Sequence[Activity], link: Link, host_seconds: float) -> None:
    check_numbers("the link", {"bandwidth": link.bytes_per_second}, {"latency": link.latency_seconds})
    check_numbers("the host", {}, {"seconds": host_seconds})
    seen = set()
    for part in activities:
        if part.device in seen:
            raise ConfigurationError(f"device {part.device!r} occurs twice in a step; give each one activity")
        if part.device == HOST and (part.receive_bytes or part.send_bytes):
            raise ConfigurationError("the host's own part of a step crosses no link; give it no bytes to move")
        seen.add(part.device)
        rates = {"flash bandwidth": part.flash_bytes_per_second, "link bandwidth": part.link_bytes_per_second}
        counts = {
            "receive bytes": part.receive_bytes,
            "read bytes": part.read_bytes,
            "read operations": part.read_operations,
            "send bytes": part.send_bytes,
            "flash latency": part.flash_latency_seconds,
            "link latency": part.link_latency_seconds,
            "start": part.start_seconds,
        }
        check_numbers(part.device, rates, counts | dict(part.phases))


def _transfer(sizes: Sequence[int], begins: Sequence[float], link: Link) -> list[float]:
    """Return when the host's side has carried each transfer."""
    if not link.shared:
        return [begin + size / link.bytes_per_second for size, begin in zip(sizes, begins, strict=True)]
    return share_link(sizes, begins, link.bytes_per_second)


def _arrive(activity: Activity, size: int, begin: float, carried: float, link: Link, latency: float) -> float:
    """Return when a transfer has ended on both sides of the link, and its latency is over; at once if it is empty."""
    if not size:
        return begin
    return max(carried, begin + size / activity.link_bytes_per_second) + link.latency_seconds + latency


def _only_reads(activity: Activity) -> float:
    """Return how long the host has nothing to compute because its next records still come."""
    return max(0.0, activity.read_seconds - activity.compute_seconds) if activity.device == HOST else 0.0


def _spans(activity: Activity, received: float, ready: float, finish: float) -> Iterable[Span]:
    name, now = activity.device, received
    if activity.receive_bytes:
        yield Span(name, RECEIVE, activity.start_seconds, received, activity.receive_bytes)
    if activity.read_bytes or activity.read_operations:
        end = received + activity.read_seconds
        if name == HOST:
            yield Span(HOST_READER, RECEIVE, received, end, activity.read_bytes)
        else:
            yield Span(name, READ, received, end, activity.read_bytes)
            now = end
    for phase, seconds in activity.phases.items():
        if seconds:
            yield Span(name, phase, now, now + seconds)
        now += seconds
    if activity.send_bytes:
        yield Span(name, SEND, ready, finish, activity.send_bytes)
