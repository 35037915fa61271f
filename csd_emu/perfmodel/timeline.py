"""From what devices did to how long a step of the array takes. Numbers in, numbers out.

A device's sequence in a step: receive over the link, read from flash, compute phase by phase, send over the link. The
host's own work follows when the last send has arrived.

The host may train too, as a participant called ``host``. It gets no weights and sends no gradient, and its records come
from the drives by plain NVMe reads, beside the link of messages. It reads ahead: while a step lasts, the records of the
next one come, so of reading and computing only the longer one counts.

How long that takes is `csd_emu.perfmodel.step`; here it is one step, with spans for people and for energy.

A model that is cut takes two such steps, with a turn between them (`compose_cut`). A drive receives its parameters,
reads, computes the forward pass of its part, and sends what crosses the cut. The host's part begins when all have
arrived. Then each drive receives the gradients of what it sent, computes its backward pass, encodes and sends the
gradients of its part. Behind the last of them the host steps its own part. Records that a drive computes in several
parts cross in as many turns; they are composed as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from csd_emu.perfmodel.sharing import Floats, check_numbers
from csd_emu.perfmodel.sharing import Link as Link
from csd_emu.perfmodel.step import DeviceWork, DriveFigures, finish_seconds, time_step
from csd_emu.util.node_names import HOST
from firmware_agent.common.errors import ConfigurationError

# The host's end of its reads has a row of its own: it overlaps what the host computes.
HOST_READER = "host reader"
RECEIVE, READ, SEND, AGGREGATE = "receive", "read", "send", "aggregate"
COMMUNICATION = frozenset({RECEIVE, SEND})
TAIL = "tail"
"""The phase of the host in which it computes its part of the model."""
FORWARD = "forward"


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


@dataclass(frozen=True)
class Crossed:
    """What crossed the cut in a step.

    Attributes:
        up_bytes: device -> activations and labels, drive to host, of all that it sent.
        down_bytes: device -> gradients of them, host to drive, of all that it received.
        tail_seconds: of the host's part, for all devices together.
        clock: whose seconds these are.
        step_seconds: in which the host steps the parameters of its part, behind the last gradient; modelled.
    """

    up_bytes: Mapping[str, int]
    down_bytes: Mapping[str, int]
    tail_seconds: float
    clock: str = "modelled"
    step_seconds: float = 0.0

    def is_of(self, devices: Collection[str]) -> bool:
        """Return whether something has crossed both ways for each of these devices."""
        return all(self.up_bytes.get(device) and self.down_bytes.get(device) for device in devices)


def compose(
    activities: Sequence[Activity], link: Link, host_seconds: float = 0.0, begin_seconds: float = 0.0
) -> Composed:
    """Return when each device does what in a step, and how long the step takes.

    Args:
        activities: one per device, and one of the host if it trains, in any order: it does not change the result.
        link: the host's side of the link.
        host_seconds: of the host's own work once the last send has arrived.
        begin_seconds: when all begin.

    Raises:
        ConfigurationError: a bandwidth is not positive, another number is negative or not finite, a device occurs
            twice, or the host is to receive or send.
    """
    _check(activities, link, host_seconds, begin_seconds)
    figures = DriveFigures(*(_column(activities, each.name) for each in fields(DriveFigures)))
    work = DeviceWork(*(_column(activities, each.name) for each in fields(DeviceWork)))
    times = time_step(work, figures, link, begin_seconds)
    columns = times.received_seconds, times.ready_seconds, finish_seconds(work, times, figures, link)
    moments = list(zip(*(column.tolist() for column in columns), strict=True))
    spans, finish, exposed = list[Span](), {}, {}
    for part, (received, ready, end) in zip(activities, moments, strict=True):
        spans += _spans(part, begin_seconds, received, ready, end)
        # The host has nothing to compute while its next records still come.
        reads = max(0.0, part.read_seconds - part.compute_seconds) if part.device == HOST else 0.0
        exposed[part.device] = (received - begin_seconds) + (end - ready) + reads
        finish[part.device] = end
    last = max(finish.values(), default=0.0)
    if host_seconds:
        spans.append(Span(HOST, AGGREGATE, last, last + host_seconds))
    return Composed(tuple(spans), last + host_seconds, finish, exposed)


def compose_cut(activities: Sequence[Activity], link: Link, crossed: Crossed, host_seconds: float = 0.0) -> Composed:
    """Return when each device does what in a step, and how long the step takes, as `timeline.compose` does.

    Args:
        activities: one per device that takes part; the bytes of what crosses are among theirs.
        link: the host's side of the link.
        crossed: what crosses, and what the host does with it.
        host_seconds: of the host's own work behind the last gradient, beside `crossed.step_seconds`.
    """
    front = compose([_forward(each, crossed) for each in activities], link)
    turn = front.seconds + crossed.tail_seconds
    rest = compose([_backward(each, crossed) for each in activities], link, host_seconds + crossed.step_seconds, turn)
    tail = [Span(HOST, TAIL, front.seconds, turn)] if crossed.tail_seconds else []
    exposed = {part.device: max(0.0, rest.finish_seconds[part.device] - part.work_seconds) for part in activities}
    return Composed((*front.spans, *tail, *rest.spans), rest.seconds, rest.finish_seconds, exposed)


def _forward(part: Activity, crossed: Crossed) -> Activity:
    """Return what a device does up to the turn; records of the host's own come beside what follows it."""
    reads = part.device != HOST
    return replace(
        part,
        receive_bytes=part.receive_bytes - crossed.down_bytes.get(part.device, 0),
        read_bytes=part.read_bytes if reads else 0,
        read_operations=part.read_operations if reads else 0,
        phases={FORWARD: part.phases.get(FORWARD, 0.0)},
        send_bytes=crossed.up_bytes.get(part.device, 0),
    )


def _backward(part: Activity, crossed: Crossed) -> Activity:
    reads = part.device == HOST
    return replace(
        part,
        receive_bytes=crossed.down_bytes.get(part.device, 0),
        read_bytes=part.read_bytes if reads else 0,
        read_operations=part.read_operations if reads else 0,
        phases={phase: seconds for phase, seconds in part.phases.items() if phase != FORWARD},
        send_bytes=part.send_bytes - crossed.up_bytes.get(part.device, 0),
    )


def shift(spans: Iterable[Span], seconds: float) -> tuple[Span, ...]:
    """Return the `spans` that much later: to put one step behind another."""
    return tuple(
        Span(span.device, span.phase, span.start_seconds + seconds, span.end_seconds + seconds, span.bytes)
        for span in spans
    )


def cut(spans: Iterable[Span], end_seconds: float) -> list[Span]:
    """Return what of the spans lies before `end_seconds`; of a span that is cut, its share of the bytes."""
    return [
        _shortened(span, end_seconds)
        for span in spans
        if span.start_seconds < end_seconds or span.end_seconds <= end_seconds
    ]


def _shortened(span: Span, end_seconds: float) -> Span:
    if span.end_seconds <= end_seconds:
        return span
    share = (end_seconds - span.start_seconds) / span.seconds
    return replace(span, end_seconds=end_seconds, bytes=round(span.bytes * share))


def by_device(spans: Iterable[Span]) -> defaultdict[str, list[Span]]:
    """Return device -> its spans, in their order."""
    grouped: defaultdict[str, list[Span]] = defaultdict(list)
    for span in spans:
        grouped[span.device].append(span)
    return grouped


def _column(activities: Sequence[Activity], name: str) -> Floats:
    return np.array([getattr(part, name) for part in activities], np.float64)


def _check(activities: Sequence[Activity], link: Link, host_seconds: float, begin_seconds: float) -> None:
    check_numbers("the link", {"bandwidth": link.bytes_per_second}, {"latency": link.latency_seconds})
    check_numbers("the host", {}, {"seconds": host_seconds, "start": begin_seconds})
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
        }
        check_numbers(part.device, rates, counts | dict(part.phases))


def _spans(activity: Activity, begin: float, received: float, ready: float, finish: float) -> Iterable[Span]:
    name, now = activity.device, received
    if activity.receive_bytes:
        yield Span(name, RECEIVE, begin, received, activity.receive_bytes)
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
