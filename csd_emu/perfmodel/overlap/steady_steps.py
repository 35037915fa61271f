"""Synchronous steps whose exchange overlaps what drives compute: which layer waits for which slice.

A drive computes one thing at a time: the forward pass from the first layer to the last, then the backward pass from the
last to the first. A layer's gradients are offered to the drive's queue when its backward pass ends; the host steps
ranges of a tensor once every drive's bytes of them are in (`csd_emu.perfmodel.overlap.stepped_ranges`) and offers them
to every drive's queue; a layer's next forward pass waits for that layer's parameters alone. There is no other barrier,
but for a model that is cut: the drives have its first layers, push the activations behind these when their forward
passes have ended, and begin their backward passes when they have pulled the gradient of these activations. The host
computes in between, once all have arrived.

Settings and link stay as they are, so each part of a step is worked out as a whole, for it hangs on nothing but the
part before: backward passes; all gradients on their way to the host (`csd_emu.perfmodel.overlap.flow`); what the host
steps; all parameters on their way to the drives; forward passes; what crosses a cut. That is so, because no drive ends
a forward pass before all drives' gradients have come to the host: there is never anything of two steps under way in one
direction, and what has been sent is known to be read before any more is. A test holds that event after event comes to
the same. Of a link that serves its drives in turns it is not so: `csd_lab.simulate.turn_simulation`.

Left out: losses and TCP's own window, the records and the announcement of a step, and that the host's streams share its
processors: what a slice costs there must be part of the link's `slice_seconds`.

Paper: Peng et al., "A generic communication scheduler for distributed DNN training acceleration" (ByteScheduler), SOSP
2019. A slice takes theta + size / B (algorithms 6.2 of the design notes).
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple, Protocol

from csd_emu.perfmodel.overlap.flow import Arrival, LinkFlow, Offer
from csd_emu.perfmodel.overlap.layer_work import Costs, number_tensors
from csd_emu.perfmodel.overlap.simulated_link import OwnLink, SharedLink
from csd_emu.perfmodel.overlap.stepped_ranges import BLOCK_BYTES, BlockStepping, HostBlocks
from firmware_agent.common.send_queue import TransferSettings

# Steps have settled when they repeat one of the last few; some schedules alternate.
_LONGEST_PERIOD = 4
_SAME_SHARE = 1e-9
_SETTLING_STEPS = 30


@dataclass(frozen=True)
class Passes:
    """What a drive computes in a step: (layers,) seconds of the forward and of the backward pass of each layer."""

    forward_seconds: tuple[float, ...]
    backward_seconds: tuple[float, ...]

    @classmethod
    def of(cls, costs: Costs) -> Passes:
        """Return those of a model's layers on a drive."""
        return cls(tuple(layer.forward_seconds for layer in costs), tuple(layer.backward_seconds for layer in costs))

    def time_backward(self, begin_seconds: float) -> list[float]:
        """Return when the pass has begun and when each layer's has ended, from the last layer to the first."""
        return list(accumulate(self.backward_seconds[::-1], initial=begin_seconds))

    def time_forward(self, begin_seconds: float, there: Sequence[float]) -> list[tuple[float, float]]:
        """Return (begin, end) of each layer's pass; `there` is when each layer's parameters have come."""
        now, times = begin_seconds, []
        for seconds, come in zip(self.forward_seconds, there, strict=True):
            begin = come if come > now else now
            now = begin + seconds
            times.append((begin, now))
        return times


@dataclass(frozen=True)
class DriveKind:
    """Drives that do the same.

    Attributes:
        drives: how many there are.
        passes: what each computes.
        own: what its own side adds to the link.
        push_bytes, pull_bytes: activations and labels that cross the cut, and the gradient of the activations; of a
            model that is cut at least one each, else 0.
    """

    drives: int
    passes: Passes
    own: OwnLink
    push_bytes: int = 0
    pull_bytes: int = 0


@dataclass(frozen=True)
class ExchangeModel:
    """What is exchanged, and how.

    Attributes:
        sizes: of each layer, of each of its tensors, bytes.
        sending: how the queues send.
        stepping: how the host steps.
    """

    sizes: tuple[tuple[int, ...], ...]
    sending: TransferSettings
    stepping: BlockStepping

    @classmethod
    def of(
        cls,
        tensors: Sequence[Sequence[int]],
        sending: TransferSettings,
        host_seconds: float,
        block_bytes: int | None,
        barrier: bool,
    ) -> ExchangeModel:
        """Return the exchange of a model whose passes begin with reading, as a layer of its own.

        Args:
            tensors: (layers,) bytes of each layer's tensors.
            sending: how the queues send.
            host_seconds: of the host's own work, which is spread over the bytes.
            block_bytes: the host steps ranges of so many bytes; None for all at once.
            barrier: whether it needs the whole gradient first.
        """
        size_bytes = sum(map(sum, tensors))
        rate = size_bytes / host_seconds if host_seconds and size_bytes else math.inf
        return cls(((), *map(tuple, tensors)), sending, BlockStepping(block_bytes or max(1, size_bytes), rate, barrier))


class StepTransfers(NamedTuple):
    """What has crossed the link in a step, arrivals in the order of their groups.

    Attributes:
        pushed: gradients, or activations; groups are kinds of drives.
        stepped: what the host has made of them, as it is offered to all; of activations the end of its part.
        pulled: parameters, or gradients of activations; groups as `SteadySteps.sides` has them.
    """

    pushed: list[Arrival]
    stepped: Sequence[Offer]
    pulled: list[Arrival]


class SteadySteps:
    """Steps one after the other, of equal settings over a link that stays as it is.

    Attributes:
        begun: (kinds,) when each began the step that comes next, the host's own part behind them.
        forward, backward: (kinds,) of the step before, when each layer's pass began and ended, and when the backward
            pass began and each layer's ended.
        exchanged: gradients and parameters of the last steps, but for those of the one before.
        crossed: what has crossed the cut in the last steps.
        repeats: whether all begin a part of each step together, so that steps are all alike from the second one on. So
            do drives of one kind, and so do all where the model is cut: whatever came before, when the host begins
            behind the cut nothing waits or is under way, and what is not yet acknowledged is before its sender sends
            again.
    """

    def __init__(
        self,
        kinds: Sequence[DriveKind],
        link: SharedLink,
        exchange: ExchangeModel,
        *,
        local: Passes | None = None,
        turn_seconds: float = 0.0,
    ) -> None:
        """Begin at 0, with all parameters there.

        Args:
            kinds: of drives, of one model; all of them cut, or none.
            link: the host's side of it.
            exchange: what is exchanged.
            local: what the host computes if it trains too.
            turn_seconds: of the host's part behind the cut.
        """
        self._kinds, self._turn_seconds = kinds, turn_seconds
        self._cut = any(kind.push_bytes for kind in kinds)
        self._passes = [*(kind.passes for kind in kinds), *([] if local is None else [local])]
        self._exchange = _Exchange(kinds, link, exchange, local is not None)
        self._crossing = LinkFlow([kind.drives for kind in kinds], [kind.own for kind in kinds], link, exchange.sending)
        self.repeats = self._cut or len(self._passes) == 1
        self.begun = [0.0] * len(self._passes)
        self.forward: list[list[tuple[float, float]]] = []
        self.backward: list[list[float]] = []
        self.exchanged = deque[StepTransfers](maxlen=3)
        self.crossed = deque[StepTransfers](maxlen=3)

    @property
    def sides(self) -> list[int]:
        """(kinds,) which group of those that get parameters at the same time each is of."""
        return self._exchange.sides

    def step(self) -> float:
        """Go on until all have begun the next step; return the seconds since they had begun this one."""
        before = max(self.begun)
        each = zip(self._passes, self.begun, self._exchange.get_back(self.exchanged, self.backward), strict=True)
        self.forward = [passes.time_forward(begun, come) for passes, begun, come in each]
        begins = [passes[-1][1] for passes in self.forward]
        if self._cut:
            begins = self._cross(begins)
        self.backward = [passes.time_backward(begin) for passes, begin in zip(self._passes, begins, strict=True)]
        self.begun = [ends[-1] for ends in self.backward]
        return max(self.begun) - before

    def _cross(self, ends: Sequence[float]) -> list[float]:
        """Return when each has the gradient of its activations, the last piece of it; the host's own part at once."""
        up = [[(end, 0, 0, kind.push_bytes)] for end, kind in zip(ends, self._kinds, strict=False)]
        pushed = self._crossing.carry(up)
        turned = max(*(arrival[0] for arrival in pushed), *ends) + self._turn_seconds
        pulled = self._crossing.carry([[(turned, 0, 0, kind.pull_bytes)] for kind in self._kinds])
        begins = [turned] * len(self._passes)
        for seconds, _, _, group, _, _ in pulled:
            begins[group] = seconds
        self.crossed.append(StepTransfers(pushed, [(turned, 0, 0, 0)], pulled))
        return begins


class _Exchange:
    """Gradients to the host, parameters back."""

    def __init__(self, kinds: Sequence[DriveKind], link: SharedLink, exchange: ExchangeModel, trains: bool) -> None:
        """See `SteadySteps`; `trains`: the host computes too, as the last group."""
        self._groups, self._trains, self._layers = len(kinds), trains, len(exchange.sizes)
        sizes = [size for layer in exchange.sizes for size in layer]
        self._host = HostBlocks(sizes, len(kinds) + trains, exchange.stepping)
        self._whole = exchange.sending.schedule == "fifo"
        self._layer_of = [layer for layer, tensors in enumerate(exchange.sizes) for _ in tensors]
        # (layers whose backward passes come before and with it, order, bytes), as they are offered.
        behind = [(self._layers - layer, order, sizes[order]) for order, layer in enumerate(self._layer_of)]
        self._gradients = behind[::-1]
        # Parameters are offered to all at once: drives that differ by what they compute alone get them together.
        drives = Counter[OwnLink]()
        for kind in kinds:
            drives[kind.own] += kind.drives
        place = {own: number for number, own in enumerate(drives)}
        self.sides = [place[kind.own] for kind in kinds]
        self._up = LinkFlow([kind.drives for kind in kinds], [kind.own for kind in kinds], link, exchange.sending)
        self._down = LinkFlow(list(drives.values()), list(drives), link, exchange.sending)

    def get_back(self, exchanged: deque[StepTransfers], ends: Sequence[Sequence[float]]) -> list[list[float]]:
        """Return when each layer's new parameters have come, to each group; before the first step they are there.

        Args:
            exchanged: to which is added what crosses the link.
            ends: of each group's backward passes, as from `Passes.time_backward`; none before the first step.
        """
        if not ends:
            return [[-math.inf] * self._layers] * (self._groups + self._trains)
        offers = [[(each[at], order, 0, size) for at, order, size in self._gradients] for each in ends]
        pushed = self._up.carry(offers[: self._groups])
        stepped = self._step(pushed, offers[self._groups :])
        sides = max(self.sides) + 1
        pulled = self._down.carry([stepped] * sides)
        there = [[-math.inf] * self._layers for _ in range(sides + 1)]
        for seconds, _, _, side, order, _ in pulled:
            there[side][self._layer_of[order]] = seconds
        for seconds, order, _, _ in stepped:
            there[-1][self._layer_of[order]] = seconds
        exchanged.append(StepTransfers(pushed, stepped, pulled))
        return [there[side] for side in self.sides] + there[-1:] * self._trains

    def _step(self, arrived: Sequence[Arrival], local: Sequence[Sequence[Offer]]) -> Sequence[Offer]:
        """Return what the host has stepped, as it is offered to all."""
        taken = [(seconds, group, order, size) for seconds, _, _, group, order, size in arrived]
        taken += [(seconds, self._groups, order, end) for own in local for seconds, order, _, end in own]
        if local:
            taken.sort(key=itemgetter(0))  # stable: at the same moment what has arrived comes first
        for seconds, group, order, size in taken:
            self._host.take(group, order, size, self._whole, seconds)
        return self._host.advance(math.inf)


class Stepping(Protocol):
    """Steps one after the other; `repeats` says that all are alike from the second one on, for whatever reason."""

    repeats: bool

    def step(self) -> float:
        """Go on until all have begun the next step; return the seconds since they had begun this one."""


def settle(run: Stepping) -> float:
    """Run steps that have not begun until they repeat; return what one takes then.

    That is the mean over their period, or of the later half if there is none.
    """
    run.step()  # it begins with all parameters, and none of those that follow does
    seconds = [run.step()]
    if run.repeats:
        return seconds[0]
    while len(seconds) < _SETTLING_STEPS:
        seconds.append(run.step())
        for period in range(1, _LONGEST_PERIOD + 1):
            last, before = seconds[-period:], seconds[-2 * period : -period]
            same = (math.isclose(*pair, rel_tol=_SAME_SHARE) for pair in zip(last, before, strict=False))
            if len(before) == period and all(same):
                return sum(last) / period
    later = seconds[_SETTLING_STEPS // 2 :]
    return sum(later) / len(later)


def steady_step_seconds(
    costs: Sequence[Costs],
    link: SharedLink,
    sending: TransferSettings,
    *,
    block_bytes: int = BLOCK_BYTES,
    own: Sequence[OwnLink] = (),
) -> float:
    """Return what a step takes once steps repeat (see `settle`).

    Args:
        costs: one per drive, of one model; those of like drives are best one object.
        link: as it is.
        sending: of all steps.
        block_bytes: the host steps ranges of so many bytes.
        own: (drives,) what each drive's side adds to the link; left out, nothing.

    Raises:
        ConfigurationError: there is no drive or no layer, the drives' models differ, or blocks have no byte.
    """
    number_tensors(costs)
    sides = list(zip(map(id, costs), own or [OwnLink()] * len(costs), strict=True))
    passes = {id(each): Passes.of(each) for each in costs}
    kinds = [DriveKind(drives, passes[part], side) for (part, side), drives in Counter(sides).items()]
    sizes = tuple(tuple(tensor.size_bytes for tensor in layer.tensors) for layer in costs[0])
    return settle(SteadySteps(kinds, link, ExchangeModel(sizes, sending, BlockStepping(block_bytes))))
