"""A step whose exchange overlaps what drives compute: what `csd_emu.perfmodel.timeline.compose` is without a schedule.

A drive's measured seconds are shared out over its layers, and the simulation of
`csd_emu.perfmodel.overlap.event_simulation` says how long a step takes in a run of which *every step is like this one*.
A step lasts from when the first drive begins it, by reading its records, to when the same drive begins the next:
forward and backward pass, the gradients pushed, and the parameters of the step before pulled as far as the forward pass
waits for them. So

* in a run of equal steps the seconds add up to those of the run;
* of unlike steps, each is charged as if its neighbours were like it: what crosses from one into the next is as long;
* a lone step, and the last one of a round, are charged so too: of a round's first parameters and last gradients as much
  is taken to be hidden as in any other step, which is too little by less than one exchange per round;
* of unlike drives, the slowest sets the pace, for a block is stepped when all have sent it; the others wait for
  parameters, and that is what is exposed of them.

Drives know a step's records while they still compute the one before, and read them as soon as they have done so.
Encoding is spread over the layers' backward passes. Beside what was measured, a slice takes `SLICE_SECONDS`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from csd_emu.perfmodel.cut_timeline import TAIL, Crossed
from csd_emu.perfmodel.overlap.event_simulation import PULL, PUSH, Simulation
from csd_emu.perfmodel.overlap.layer_split import share_out
from csd_emu.perfmodel.overlap.layer_work import Costs, exchange_bytes
from csd_emu.perfmodel.overlap.simulated_array import SimulatedArray
from csd_emu.perfmodel.overlap.simulated_drive import FORWARD, Computed
from csd_emu.perfmodel.overlap.simulated_link import OwnLink, SharedLink
from csd_emu.perfmodel.overlap.simulated_step import settle
from csd_emu.perfmodel.overlap.split_exchange import SplitExchange
from csd_emu.perfmodel.overlap.stepped_ranges import BLOCK_BYTES, BlockStepping
from csd_emu.perfmodel.timeline import AGGREGATE, HOST_READER, READ, RECEIVE, SEND, Activity, Composed, Link, Span
from csd_emu.profiles import Sourced
from csd_emu.util.node_names import HOST
from firmware_agent.common.send_queue import TransferSettings

if TYPE_CHECKING:  # it imports torch
    from firmware_agent.common.layer_costs import LayerWork

SLICE_SECONDS = Sourced(
    50e-6,
    "assumed: a message through gRPC and TCP beside its bytes; what the drive encodes is measured with its phases",
)
Interval = tuple[float, float, int]
# A shorter gap is rounding; one of such a share of a step is not worth a span of its own.
_TOUCH_SECONDS, _NEAR_SHARE = 1e-9, 0.01
# Seconds that differ by such a share of a step are alike: counted ones of equal work do by less.
_ALIKE_SHARE = 1e-3


@dataclass(frozen=True)
class OverlapComposer:
    """Composes the steps of one model.

    Attributes:
        layers: of the model.
        exchanged: what is pushed and pulled in each step, name -> bytes.
        block_bytes: the host steps ranges of so many bytes; None for whole tensors.
        barrier: whether its optimiser needs the whole gradient before it steps anything.
    """

    layers: tuple[LayerWork, ...]
    exchanged: Mapping[str, int]
    block_bytes: int | None = BLOCK_BYTES
    barrier: bool = False

    def compose(
        self,
        activities: Sequence[Activity],
        link: Link,
        sending: TransferSettings,
        host_seconds: float = 0.0,
        crossed: Crossed | None = None,
    ) -> Composed:
        """Return when each device does what in a step, and how long the step takes.

        Drives whose seconds differ by less than a thousandth of a step are computed as one, the slowest of them. Spans
        of slices on one drive are joined where less than a hundredth of a step lies between them. Exposed is when a
        drive neither computes nor reads; it has finished when it has computed. Spans may reach into the next step:
        there the last gradients of this one are not shown, and those of the step before are shown here.

        Args:
            activities: one per device that takes part, at least one drive, and one of the host if it trains.
            link: the host's side of the link.
            sending: the step's settings.
            host_seconds: of the host's own work, spread over the bytes as it steps them.
            crossed: of a model that is cut, of which `layers` are those of the drives: what crossed both ways for every
                drive. It is sent by the same queues, between the forward and the backward passes.
        """
        drives = [part for part in activities if part.device != HOST]
        host = next((part for part in activities if part.device == HOST), None)
        array = self._array(drives, host, link, crossed)
        size_bytes = exchange_bytes(array.costs[0])
        rate = size_bytes / host_seconds if host_seconds and size_bytes else math.inf
        stepping = BlockStepping(self.block_bytes or max(1, size_bytes), rate, self.barrier)
        run = Simulation(array, _shared(link, len(drives)), sending, stepping)
        seconds = settle(run)
        run.record = True
        run.step()
        step = run.steps
        run.step()
        window = min(run.begun_seconds(step)), seconds
        rows = [*zip(drives, run.groups, strict=True), *([(host, max(run.groups) + 1)] if host is not None else [])]
        spans, finish, exposed = list[Span](), {}, {}
        for part, group in rows:
            passes = [each.computed for each in run.passes if each.group == group and each.computed.step == step]
            spans += _computing(part, passes, window[0])
            if part.device != HOST:
                spans += _communicating(part, run, group, window)
            finish[part.device] = passes[-1].end_seconds - window[0]
            exposed[part.device] = max(0.0, seconds - part.work_seconds)
        if host_seconds and size_bytes:
            spans += _aggregating(run, window, host_seconds / size_bytes)
        return Composed((*spans, *_tails(run, window)), seconds, finish, exposed)

    def _array(
        self, drives: Sequence[Activity], host: Activity | None, link: Link, crossed: Crossed | None
    ) -> SimulatedArray:
        """Return what is simulated; drives alike have their costs in common."""
        alike = _as_one(drives)
        known = {key: self._costs(part) for key, part in {id(part): part for part in alike}.items()}
        return SimulatedArray(
            costs=[known[id(part)] for part in alike],
            own=[_own(part, link) for part in drives],
            host=None if host is None else self._costs(host),
            turn=None if crossed is None else _turn(drives, crossed),
        )

    def _costs(self, part: Activity) -> Costs:
        phases = dict(part.phases)
        forward, encode = phases.pop(FORWARD, 0.0), phases.pop("encode", 0.0)
        reads = part.work_seconds - part.compute_seconds
        return share_out(self.layers, forward, sum(phases.values()), encode, reads, self.exchanged)


def _as_one(drives: Sequence[Activity]) -> list[Activity]:
    """Return for each drive the one that it is computed as: of those alike, the slowest."""
    leaders: list[Activity] = []
    result = list(drives)
    for index in sorted(range(len(drives)), key=lambda place: -drives[place].work_seconds):
        leader = next((each for each in leaders if _alike(each, drives[index])), None)
        if leader is None:
            leader = drives[index]
            leaders.append(leader)
        result[index] = leader
    return result


def _alike(one: Activity, other: Activity) -> bool:
    near = _ALIKE_SHARE * one.work_seconds
    return (
        (one.link_bytes_per_second, one.link_latency_seconds)
        == (other.link_bytes_per_second, other.link_latency_seconds)
        and abs(one.read_seconds - other.read_seconds) <= near
        and one.phases.keys() == other.phases.keys()
        and all(abs(took - other.phases[phase]) <= near for phase, took in one.phases.items())
    )


def _computing(part: Activity, passes: Sequence[Computed], start: float) -> Iterator[Span]:
    """Yield what a device computes and reads in a step; phases behind the forward pass one after the other."""
    reading, *rest = passes
    begin = reading.begin_seconds - start
    if part.device == HOST and part.read_seconds:
        yield Span(HOST_READER, RECEIVE, begin, begin + part.read_seconds, part.read_bytes)
    elif part.read_seconds:
        yield Span(part.device, READ, begin, begin + part.read_seconds, part.read_bytes)
    forward = [(p.begin_seconds - start, p.end_seconds - start, 0) for p in rest if p.phase == FORWARD]
    computed = sum(end - begin for begin, end, _ in forward)
    share = part.phases.get(FORWARD, 0.0) / computed if computed else 0.0
    for begin, end, _ in _joined(forward, _TOUCH_SECONDS):
        if end > begin:
            yield Span(part.device, FORWARD, begin, begin + (end - begin) * share)
    now = next(p.begin_seconds for p in rest if p.phase != FORWARD) - start
    for phase, seconds in part.phases.items():
        if phase != FORWARD and seconds:
            yield Span(part.device, phase, now, now + seconds)
            now += seconds


def _communicating(part: Activity, run: Simulation, group: int, window: tuple[float, float]) -> Iterator[Span]:
    """Yield when slices are on their way that arrive within the window; they have the bytes that were counted."""
    start, seconds = window
    for way, phase, counted in ((PULL, RECEIVE, part.receive_bytes), (PUSH, SEND, part.send_bytes)):
        arrived = [
            (max(0.0, carried.begin_seconds - start), carried.arrival_seconds - start, carried.piece.size_bytes)
            for direction, carried in run.transfers
            if direction == way and carried.group == group and 0 <= carried.arrival_seconds - start < seconds
        ]
        joined = _joined(arrived, _NEAR_SHARE * seconds)
        sizes = list(accumulate((size for _, _, size in joined), initial=0))
        ends = [round(counted * size / sizes[-1]) if sizes[-1] else 0 for size in sizes]
        for (begin, end, _), (before, after) in zip(joined, pairwise(ends), strict=True):
            yield Span(part.device, phase, begin, end, after - before)


def _aggregating(run: Simulation, window: tuple[float, float], seconds_per_byte: float) -> Iterator[Span]:
    """Yield when the host steps what is ready within the window."""
    start, seconds = window
    stepped = [
        (max(0.0, ready - start - (end - begin) * seconds_per_byte), ready - start, 0)
        for ready, _, _, begin, end in run.stepped
        if 0 <= ready - start < seconds
    ]
    for begin, end, _ in _joined(stepped, _TOUCH_SECONDS):
        yield Span(HOST, AGGREGATE, begin, end)


def _tails(run: Simulation, window: tuple[float, float]) -> Iterator[Span]:
    """Yield when the host computes behind the cut, begun within the window."""
    start, seconds = window
    for begin, end in run.turned:
        if 0 <= begin - start < seconds and end > begin:
            yield Span(HOST, TAIL, begin - start, end - start)


def _joined(intervals: Sequence[Interval], gap_seconds: float) -> list[Interval]:
    """Return when any of the intervals goes on, and the sum of what they carry; shorter gaps are filled."""
    joined: list[Interval] = []
    for begin, end, size in sorted(intervals):
        if joined and begin <= joined[-1][1] + gap_seconds:
            last = joined[-1]
            joined[-1] = last[0], max(last[1], end), last[2] + size
        else:
            joined.append((begin, end, size))
    return joined


def _turn(drives: Sequence[Activity], crossed: Crossed) -> SplitExchange:
    return SplitExchange(
        tuple(crossed.up_bytes[part.device] for part in drives),
        tuple(crossed.down_bytes[part.device] for part in drives),
        crossed.tail_seconds,
    )


def _shared(link: Link, drives: int) -> SharedLink:
    """Return the host's side; where it is not shared, it is as wide as all drives have for themselves."""
    width = 1 if link.shared else drives
    return SharedLink(link.bytes_per_second * width, link.latency_seconds, SLICE_SECONDS.value)


def _own(part: Activity, link: Link) -> OwnLink:
    rate = part.link_bytes_per_second if link.shared else min(part.link_bytes_per_second, link.bytes_per_second)
    return OwnLink(rate, part.link_latency_seconds)
