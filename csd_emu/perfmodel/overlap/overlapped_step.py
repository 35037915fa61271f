"""A step whose exchange overlaps what drives compute: what `csd_emu.perfmodel.timeline.compose` is without a schedule.

A drive's measured seconds are shared out over its layers, and the simulation of
`csd_emu.perfmodel.overlap.steady_steps` says how long a step takes in a run of which *every step is like this one*.
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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from csd_emu.perfmodel.overlap.layer_work import Costs, DriveTransfers, share_out
from csd_emu.perfmodel.overlap.simulated_link import host_side, own_side
from csd_emu.perfmodel.overlap.steady_steps import DriveKind, ExchangeModel, Passes, SteadySteps, StepTransfers, settle
from csd_emu.perfmodel.overlap.stepped_ranges import BLOCK_BYTES
from csd_emu.perfmodel.timeline import (
    AGGREGATE,
    FORWARD,
    HOST_READER,
    READ,
    RECEIVE,
    SEND,
    TAIL,
    Activity,
    Composed,
    Crossed,
    Link,
    Span,
)
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
class OverlappedStep(Composed):
    """A step of the array whose exchange overlaps what drives compute.

    Attributes:
        transfers: of each drive, in the order of the activities, if the step is traced.
    """

    transfers: tuple[DriveTransfers, ...] = ()


@dataclass(frozen=True)
class OverlapComposer:
    """Composes the steps of one model.

    Attributes:
        layers: of the model.
        exchanged: what is pushed and pulled in each step, name -> bytes.
        block_bytes: the host steps ranges of so many bytes; None for whole tensors.
        barrier: whether its optimiser needs the whole gradient before it steps anything.
        traced: whether steps have their `transfers`, as a tuner of transfers is told of real ones.
    """

    layers: tuple[LayerWork, ...]
    exchanged: Mapping[str, int]
    block_bytes: int | None = BLOCK_BYTES
    barrier: bool = False
    traced: bool = False

    def compose(
        self,
        activities: Sequence[Activity],
        link: Link,
        sending: TransferSettings,
        host_seconds: float = 0.0,
        crossed: Crossed | None = None,
    ) -> OverlappedStep:
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
        kinds, groups = self._kinds(drives, link, crossed)
        tensors = [[size for name in layer.tensors if (size := self.exchanged.get(name))] for layer in self.layers]
        exchange = ExchangeModel.of(tensors, sending, host_seconds, self.block_bytes, self.barrier)
        run = SteadySteps(
            kinds,
            host_side(link, len(drives), SLICE_SECONDS.value),
            exchange,
            local=None if host is None else self._passes(host),
            turn_seconds=0.0 if crossed is None else crossed.tail_seconds,
        )
        step = _SettledStep(run)
        rows = [*zip(drives, groups, strict=True), *([(host, len(kinds))] if host is not None else [])]
        spans, finish, exposed = list[Span](), {}, {}
        for part, group in rows:
            spans += step.computing(part, group)
            if part.device != HOST:
                spans += step.communicating(part, group)
            finish[part.device] = step.backward[group][-1] - step.begin_seconds
            exposed[part.device] = max(0.0, step.seconds - part.work_seconds)
        spans += step.aggregating(1 / exchange.stepping.bytes_per_second)
        if crossed is not None:
            spans += step.tails(crossed.tail_seconds)
        transfers = step.transfers([self._costs(part) for part in drives], groups) if self.traced else ()
        return OverlappedStep(tuple(spans), step.seconds, finish, exposed, transfers)

    def _kinds(
        self, drives: Sequence[Activity], link: Link, crossed: Crossed | None
    ) -> tuple[list[DriveKind], list[int]]:
        """Return the kinds of drives, and which of them each drive is of."""
        kinds: dict[tuple[int, int, int], DriveKind] = {}
        keys = []
        for part, leader in zip(drives, _as_one(drives), strict=True):
            up, down = (0, 0) if crossed is None else (crossed.up_bytes[part.device], crossed.down_bytes[part.device])
            keys.append(key := (id(leader), up, down))
            if (kind := kinds.get(key)) is None:
                own = own_side(link, part.link_bytes_per_second, part.link_latency_seconds)
                kind = DriveKind(0, self._passes(leader), own, up, down)
            kinds[key] = replace(kind, drives=kind.drives + 1)
        places = {key: place for place, key in enumerate(kinds)}
        return list(kinds.values()), [places[key] for key in keys]

    def _costs(self, part: Activity) -> Costs:
        phases = dict(part.phases)
        forward, encode = phases.pop(FORWARD, 0.0), phases.pop("encode", 0.0)
        return share_out(self.layers, forward, sum(phases.values()), encode, self.exchanged)

    def _passes(self, part: Activity) -> Passes:
        """Return what a device computes; reading comes first, as a layer of its own."""
        passes, reads = Passes.of(self._costs(part)), part.work_seconds - part.compute_seconds
        return Passes((reads, *passes.forward_seconds), (0.0, *passes.backward_seconds))


def _as_one(drives: Sequence[Activity]) -> list[Activity]:
    """Return for each drive the one that it is computed as: of those alike, the slowest."""
    leaders: list[Activity] = []
    result = list(drives)
    for index in sorted(range(len(drives)), key=lambda place: -drives[place].work_seconds):
        if (leader := next((each for each in leaders if _alike(each, drives[index])), None)) is None:
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


class _SettledStep:
    """A step of a run of equal ones, from when the first device begins it to when it begins the next.

    Attributes:
        seconds: how long it lasts.
        begin_seconds: when it begins, on the run's clock.
        backward: (kinds,) when each backward pass begins and each layer's ends.
    """

    def __init__(self, run: SteadySteps) -> None:
        """Take a run that has not begun."""
        self.seconds = settle(run)
        self._begun, self.begin_seconds = run.begun, min(run.begun)
        run.step()
        self._forward, self.backward = run.forward, run.backward
        run.step()  # for what has crossed since
        self._run = run

    def computing(self, part: Activity, group: int) -> Iterator[Span]:
        """Yield what a device computes and reads; phases behind the forward pass one after the other."""
        begin = self._begun[group] - self.begin_seconds
        if part.read_seconds:
            row, phase = (HOST_READER, RECEIVE) if part.device == HOST else (part.device, READ)
            yield Span(row, phase, begin, begin + part.read_seconds, part.read_bytes)
        forward = [(begin - self.begin_seconds, end - self.begin_seconds, 0) for begin, end in self._forward[group][1:]]
        computed = sum(end - begin for begin, end, _ in forward)
        share = part.phases.get(FORWARD, 0.0) / computed if computed else 0.0
        yield from (
            Span(part.device, FORWARD, begin, begin + (end - begin) * share)
            for begin, end, _ in _joined(forward, _TOUCH_SECONDS)
            if end > begin
        )
        now = self.backward[group][0] - self.begin_seconds
        for phase, seconds in part.phases.items():
            if phase != FORWARD and seconds:
                yield Span(part.device, phase, now, now + seconds)
                now += seconds

    def communicating(self, part: Activity, group: int) -> Iterator[Span]:
        """Yield when slices are on their way that arrive within the step; they have the bytes that were counted."""
        side, exchanged, crossed = self._run.sides[group], self._run.exchanged, self._run.crossed
        pulled = [(side, each.pulled) for each in exchanged] + [(group, each.pulled) for each in crossed]
        pushed = [(group, each.pushed) for each in (*exchanged, *crossed)]
        for ways, phase, counted in ((pulled, RECEIVE, part.receive_bytes), (pushed, SEND, part.send_bytes)):
            arrived = [
                (max(0.0, begin - self.begin_seconds), arrival - self.begin_seconds, size)
                for own, arrivals in ways
                for arrival, begin, _, of, _, size in arrivals
                if of == own and self._holds(arrival)
            ]
            joined = _joined(arrived, _NEAR_SHARE * self.seconds)
            sizes = list(accumulate((size for _, _, size in joined), initial=0))
            ends = [round(counted * size / sizes[-1]) if sizes[-1] else 0 for size in sizes]
            for (begin, end, _), (before, after) in zip(joined, pairwise(ends), strict=True):
                yield Span(part.device, phase, begin, end, after - before)

    def transfers(self, costs: Sequence[Costs], groups: Sequence[int]) -> tuple[DriveTransfers, ...]:
        """Return those of drives that compute so and are of these groups, all of one step."""
        last = [*islice(reversed(self._run.exchanged), 1), *islice(reversed(self._run.crossed), 1)]
        slices = {group: self._slices(last, group) for group in groups}
        return tuple(DriveTransfers(own, slices[group]) for own, group in zip(costs, groups, strict=True))

    def _slices(self, steps: Sequence[StepTransfers], group: int) -> npt.NDArray[np.float64]:
        """Return a group's slices, as `DriveTransfers` has them; gradients and parameters come first."""
        sides = (self._run.sides[group], group)
        # Of a pull the host is told when the answer has come: the way back is as long as the way there.
        rows = [
            (push, size, begin, arrival if push else 2 * arrival - end)
            for each, side in zip(steps, sides, strict=False)
            for push, own, arrivals in ((1, group, each.pushed), (0, side, each.pulled))
            for arrival, begin, end, of, _, size in arrivals
            if of == own
        ]
        return np.array(rows, np.float64).reshape(-1, 4)

    def aggregating(self, seconds_per_byte: float) -> Iterator[Span]:
        """Yield when the host steps what is ready within the step; nothing if that takes it no time."""
        stepped = [
            (max(0.0, ready - self.begin_seconds - (end - begin) * seconds_per_byte), ready - self.begin_seconds, 0)
            for each in self._run.exchanged
            for ready, _, begin, end in each.stepped
            if seconds_per_byte and self._holds(ready)
        ]
        yield from (Span(HOST, AGGREGATE, begin, end) for begin, end, _ in _joined(stepped, _TOUCH_SECONDS))

    def tails(self, tail_seconds: float) -> Iterator[Span]:
        """Yield when the host computes behind the cut, begun within the step."""
        begins = [each.stepped[0][0] - tail_seconds for each in self._run.crossed if tail_seconds]
        yield from (
            Span(HOST, TAIL, begin - self.begin_seconds, begin + tail_seconds - self.begin_seconds)
            for begin in filter(self._holds, begins)
        )

    def _holds(self, seconds: float) -> bool:
        return 0 <= seconds - self.begin_seconds < self.seconds


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
