"""The hidden world of `bench placement_world`: a step of a model that is cut, simulated flow by flow.

It shares no code with the product's timeline (`csd_emu.perfmodel`). Streams are fluid: every drive has one stream each
way, whose messages follow one another, and all streams of a direction share the host's side, their group's port and
their own side max-min fairly. Drives compute layer by layer, the host takes messages one after the other, adds up and
steps layer by layer, and computes its own layers when all activations are there. What was drawn
(`csd_lab.bench.placement.placement_draws`) slows some of it in ways that nobody was told of.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from csd_lab.bench.placement import placement_draws as ranges
from csd_lab.bench.placement.placement_case import WARM_UP, Floats, PlacementTruth, Told, draw_world

LABEL_BYTES = 8
# A layer's tensors cross in so many messages at most, of 4 MiB at least, where exchange and computing overlap.
_CHUNKS, _CHUNK_BYTES = 4, 4 << 20
# Priorities: activations and their gradients go before any layer's tensors.
_ACTIVATIONS = -1


@dataclass(frozen=True)
class DrawnPlacement:
    """A drawn case."""

    told: Told
    truth: PlacementTruth

    @property
    def cuts(self) -> list[int]:
        """How many layers the drives may keep; the last one is all of them."""
        layers = self.told.layers
        return [cut for cut in range(1, len(layers)) if layers[cut].input_bytes is not None] + [len(layers)]

    def step_seconds(self, cut: int) -> float:
        """Return the mean seconds of a step with `cut` layers on the drives."""
        return StepSimulation(self, cut).mean_step_seconds()


def draw_case(rng: np.random.Generator) -> DrawnPlacement:
    """Return a case, all of it drawn."""
    return DrawnPlacement(*draw_world(rng))


class Direction:
    """All streams of one direction: each sends one message at a time, the most urgent of those that wait."""

    def __init__(self, truth: PlacementTruth, arrived: Callable[[float, int, object], None]) -> None:
        """Take the links; `arrived` is told of (seconds, drive, what) when a message's last byte is on the wire."""
        drives = len(truth.own_rate)
        self._truth, self._arrived = truth, arrived
        self._waiting: list[list[tuple[int, int, float, object]]] = [[] for _ in range(drives)]
        self._sending: list[object | None] = [None] * drives
        self._left, self._rates = np.full(drives, np.inf), np.zeros(drives)
        self._number, self._now, self._factor = itertools.count(), 0.0, 1.0
        self._known: dict[bytes, Floats] = {}

    def set_factor(self, now: float, factor: float) -> None:
        """Have all rates be other ones from now on."""
        self._advance(now)
        self._factor = factor
        self._known.clear()
        self._share()

    def send(self, now: float, drive: int, priority: int, size_bytes: float, what: object) -> None:
        """Add a message to a stream."""
        heapq.heappush(self._waiting[drive], (priority, next(self._number), size_bytes, what))
        if self._sending[drive] is None:
            self._advance(now)
            self._begin(drive)
            self._share()

    def next_seconds(self) -> float:
        """Return when the next message ends; infinity if none is under way."""
        return self._now + self._wait() if any(each is not None for each in self._sending) else math.inf

    def end_next(self, now: float) -> None:
        """End the messages that end now."""
        self._advance(now)
        ended = np.flatnonzero(self._left <= 1e-6 * (1 + self._rates)).tolist()
        done = [(drive, self._sending[drive]) for drive in ended]
        for drive in ended:
            self._begin(drive)
        self._share()
        for drive, what in done:
            self._arrived(now, drive, what)

    def _wait(self) -> float:
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(max(0.0, np.nanmin(self._left / self._rates)))

    def _advance(self, now: float) -> None:
        self._left -= self._rates * (now - self._now)
        self._now = now

    def _begin(self, drive: int) -> None:
        if not self._waiting[drive]:
            self._sending[drive], self._left[drive] = None, np.inf
            return
        _, _, size, what = heapq.heappop(self._waiting[drive])
        self._sending[drive], self._left[drive] = what, max(1.0, size)

    def _share(self) -> None:
        active = np.isfinite(self._left)
        key = active.tobytes()
        if key not in self._known:
            self._known[key] = share_fairly(self._truth, active) * self._factor
        self._rates = self._known[key]


def share_fairly(truth: PlacementTruth, active: npt.NDArray[np.bool_]) -> Floats:
    """Return (drives,) bytes/s of each stream: max-min fair over own sides, ports and the host's side."""
    rates = np.zeros(len(active))
    if not active.any():
        return rates
    groups = [np.flatnonzero(active & (truth.group == number)) for number in np.unique(truth.group[active])]
    caps = [np.minimum(truth.own_rate[each], _level(truth.own_rate[each], truth.port_rate)) for each in groups]
    everyone, most = np.concatenate(groups), np.concatenate(caps)
    rates[everyone] = np.minimum(most, _level(most, truth.link_rate))
    return rates


def _level(most: Floats, capacity: float) -> float:
    """Return the rate up to which all get what they can take, so that together they take no more than `capacity`."""
    if most.sum() <= capacity:
        return math.inf
    ordered = np.sort(most)
    before = np.concatenate([[0.0], np.cumsum(ordered)[:-1]])
    levels = (capacity - before) / np.arange(len(ordered), 0, -1)
    return float(levels[np.flatnonzero(levels <= ordered)[0]])


class StepSimulation:
    """Steps of one case with one cut, event by event."""

    def __init__(self, case: DrawnPlacement, cut: int) -> None:
        """Take a case; nothing happens yet."""
        self._told, self._truth, self._cut = case.told, case.truth, cut
        self._moved = cut < len(case.told.layers)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = itertools.count()
        self._up = Direction(self._truth, self._host_gets)
        self._down = Direction(self._truth, self._drive_gets)
        self._steps = _StepState(len(case.told.batches))
        self._began: list[float] = []

    def mean_step_seconds(self) -> float:
        """Return the mean of the steps that count, from when the first drive begins one to when it begins the next."""
        wanted = ranges.STEPS + WARM_UP + 1
        self._begin_all(0.0)
        while len(self._began) < wanted:
            heap = self._events[0][0] if self._events else math.inf
            up, down = self._up.next_seconds(), self._down.next_seconds()
            now = min(heap, up, down)
            if now == heap:
                heapq.heappop(self._events)[2](now)
            elif now == up:
                self._up.end_next(now)
            else:
                self._down.end_next(now)
        return (self._began[-1] - self._began[WARM_UP]) / ranges.STEPS

    def _at(self, seconds: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (seconds, next(self._number), act))

    def _chunks(self, layer: int) -> tuple[int, float]:
        """Return how many messages a layer's tensors are, and the bytes of each."""
        size = self._told.layers[layer].weight_bytes
        count = max(1, min(_CHUNKS, math.ceil(size / _CHUNK_BYTES)))
        return count, size / count

    # Drives -----------------------------------------------------------------------------------------------------------

    def _begin_all(self, now: float) -> None:
        for drive in range(len(self._told.batches)):
            if self._told.overlapped:
                self._steps.arrived[drive] = {layer: self._chunks(layer)[0] for layer in range(self._cut)}
                self._begin_step(now, drive)
            else:
                self._down.send(now, drive, 0, self._weights(), ("weights", 0))

    def _weights(self) -> float:
        return float(sum(layer.weight_bytes for layer in self._told.layers[: self._cut]))

    def _begin_step(self, now: float, drive: int) -> None:
        state = self._steps
        step = state.step[drive]
        if step == len(self._began):  # the first one to come so far
            self._began.append(now)
            factor = float(self._truth.link_factor[min(step, len(self._truth.link_factor) - 1)])
            self._up.set_factor(now, factor)
            self._down.set_factor(now, factor)
        state.layer[drive] = 0
        self._at(now + float(self._truth.read_seconds[drive]), lambda then: self._forward(then, drive))

    def _forward(self, now: float, drive: int) -> None:
        """Compute the next layer, if its tensors are there; else it is computed when they come."""
        state = self._steps
        layer = state.layer[drive]
        state.idle[drive] = False
        if layer == self._cut:
            self._end_forward(now, drive)
        elif self._told.overlapped and state.arrived[drive].get(layer, 0) < self._chunks(layer)[0]:
            state.idle[drive] = True
        else:
            state.arrived[drive][layer] = 0
            state.layer[drive] = layer + 1
            took = float(self._truth.forward[drive, layer]) * self._slowed(drive)
            self._at(now + took, lambda then: self._forward(then, drive))

    def _slowed(self, drive: int) -> float:
        factors = self._truth.step_factor
        return float(factors[min(self._steps.step[drive], len(factors) - 1), drive])

    def _end_forward(self, now: float, drive: int) -> None:
        if not self._moved:
            return self._backward(now, drive, self._cut - 1)
        size = self._crossing(drive)
        done = now + size * self._truth.encode_rate
        what = ("activations", self._steps.step[drive])
        self._at(done, lambda then: self._up.send(then, drive, _ACTIVATIONS, size, what))
        return None

    def _crossing(self, drive: int) -> float:
        record = self._told.layers[self._cut].input_bytes or 0
        return float(self._told.batches[drive] * (record + LABEL_BYTES))

    def _backward(self, now: float, drive: int, layer: int) -> None:
        """Compute a layer's backward pass and send its gradient; then the one before it."""
        if layer < 0:
            if not self._told.overlapped:
                self._up.send(now, drive, 0, self._weights(), ("gradients", self._steps.step[drive]))
            self._end_step(now, drive)
            return
        took = float(self._truth.backward[drive, layer]) * self._slowed(drive)
        encode = self._told.layers[layer].weight_bytes * self._truth.encode_rate
        self._at(now + took + encode, lambda then: self._pushed(then, drive, layer))

    def _pushed(self, now: float, drive: int, layer: int) -> None:
        if self._told.overlapped:
            count, size = self._chunks(layer)
            for _ in range(count):
                self._up.send(now, drive, layer, size, ("layer", layer, self._steps.step[drive]))
        self._backward(now, drive, layer - 1)

    def _end_step(self, now: float, drive: int) -> None:
        self._steps.step[drive] += 1
        if self._told.overlapped:
            self._begin_step(now, drive)

    # The host ---------------------------------------------------------------------------------------------------------

    def _host_gets(self, now: float, drive: int, what: object) -> None:
        """Take a message in after those before it, then see whether all drives' are there."""
        assert isinstance(what, tuple)
        kind = what[0]
        messages = self._cut if kind == "gradients" else 1
        size = self._crossing(drive) if kind == "activations" else self._weights()
        if kind == "layer":
            size = self._chunks(what[1])[1]
        truth, state = self._truth, self._steps
        begins = max(now + truth.latency_seconds, state.receiving)
        state.receiving = begins + messages * truth.message_seconds + size / truth.receive_rate
        self._at(state.receiving, lambda then: self._host_has(then, what))

    def _host_has(self, now: float, what: tuple[object, ...]) -> None:
        state, drives = self._steps, len(self._told.batches)
        state.received[what] = state.received.get(what, 0) + 1
        wanted = drives * (self._chunks(int(str(what[1])))[0] if what[0] == "layer" else 1)
        if state.received[what] < wanted:
            return
        del state.received[what]
        if what[0] == "activations":
            done = now + float(self._truth.tail_seconds[self._cut])
            self._at(done, lambda then: self._send_back(then, int(str(what[1]))))
        else:
            size = self._weights() if what[0] == "gradients" else self._told.layers[int(str(what[1]))].weight_bytes
            state.summing = max(now, state.summing) + (2 * drives + 4) * size / self._truth.sum_rate
            self._at(state.summing, lambda then: self._summed(then, what))

    def _send_back(self, now: float, step: int) -> None:
        for drive in range(len(self._told.batches)):
            self._down.send(now, drive, _ACTIVATIONS, self._crossing(drive), ("turn", step))

    def _summed(self, now: float, what: tuple[object, ...]) -> None:
        for drive in range(len(self._told.batches)):
            if what[0] == "gradients":
                self._down.send(now, drive, 0, self._weights(), ("weights", what[1]))
                continue
            layer = int(str(what[1]))
            count, size = self._chunks(layer)
            for _ in range(count):
                self._down.send(now, drive, layer, size, what)

    def _drive_gets(self, now: float, drive: int, what: object) -> None:
        assert isinstance(what, tuple)
        self._at(now + self._truth.latency_seconds, lambda then: self._drive_has(then, drive, what))

    def _drive_has(self, now: float, drive: int, what: tuple[object, ...]) -> None:
        state = self._steps
        if what[0] == "weights":
            self._begin_step(now, drive)
        elif what[0] == "turn":
            self._backward(now, drive, self._cut - 1)
        else:
            layer = int(str(what[1]))
            state.arrived[drive][layer] = state.arrived[drive].get(layer, 0) + 1
            if state.idle[drive] and state.layer[drive] == layer:
                self._forward(now, drive)


class _StepState:
    """Where drives and host are.

    Attributes:
        step, layer: of each drive, the step and the layer that it computes next.
        idle: whether it waits for this layer's tensors.
        arrived: of each drive, layer -> how many messages of its tensors have come.
        receiving, summing: when the host is free to take the next message, to add up the next layer.
        received: what -> how many messages of it the host has.
    """

    def __init__(self, drives: int) -> None:
        self.step, self.layer, self.idle = [0] * drives, [0] * drives, [False] * drives
        self.arrived: list[dict[int, int]] = [{} for _ in range(drives)]
        self.receiving = self.summing = 0.0
        self.received: dict[tuple[object, ...], int] = {}
