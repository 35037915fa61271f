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
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from csd_lab.bench.placement import placement_draws as ranges
from csd_lab.bench.placement.placement_draws import DrawnLayer, between, draw_model, log_between, off

Floats = npt.NDArray[np.float64]
LABEL_BYTES = 8
# A layer's tensors cross in so many messages at most, of 4 MiB at least, where exchange and computing overlap.
_CHUNKS, _CHUNK_BYTES = 4, 4 << 20
# Steps before those that count: nothing is under way at the beginning.
_WARM_UP = 1
# Priorities: activations and their gradients go before any layer's tensors.
_ACTIVATIONS = -1


@dataclass(frozen=True)
class Told:
    """What a policy is told of a case.

    Attributes:
        layers: of the model.
        forward, backward: (layers,) seconds of each on a drive of full speed, as a table has them; None: only the
            arithmetic of the layers is known.
        compute_seconds: forward and backward pass of the full batch on a drive of full speed.
        batches, slowness: (drives,) records of a step, and how many times a full-speed drive's seconds a record takes.
        host_ratio: how many times as fast as a drive the host is.
        link_rate, own_rate: bytes/s of the host's side and of a drive's, each way.
        latency_seconds: of a message.
        encode_seconds, read_seconds: of a full batch.
        overlapped: whether the exchange overlaps computing.
    """

    layers: tuple[DrawnLayer, ...]
    forward: Floats | None
    backward: Floats | None
    compute_seconds: float
    batches: tuple[int, ...]
    slowness: tuple[float, ...]
    host_ratio: float
    link_rate: float
    own_rate: float
    latency_seconds: float
    encode_seconds: float
    read_seconds: float
    overlapped: bool


@dataclass(frozen=True)
class Truth:
    """What is so.

    Attributes:
        forward, backward: (drives, layers) seconds of the drive's batch.
        tail_seconds: (layers + 1,) of the host's layers behind each cut, for all records.
        encode_rate: seconds of a drive for each byte that it sends.
        read_seconds: (drives,).
        own_rate: (drives,) bytes/s.
        group: (drives,) the number of the port that each hangs on.
        port_rate, link_rate: bytes/s of each group's port and of the host's side.
        latency_seconds: of a message.
        message_seconds, receive_rate, sum_rate: of the host, for each message, received byte and byte that it touches.
        step_factor: (steps, drives) of a drive's seconds in a step.
        link_factor: (steps,) of all rates.
    """

    forward: Floats
    backward: Floats
    tail_seconds: Floats
    encode_rate: float
    read_seconds: Floats
    own_rate: Floats
    group: npt.NDArray[np.int64]
    port_rate: float
    link_rate: float
    latency_seconds: float
    message_seconds: float
    receive_rate: float
    sum_rate: float
    step_factor: Floats
    link_factor: Floats


@dataclass(frozen=True)
class WorldCase:
    """A drawn case."""

    told: Told
    truth: Truth

    @property
    def cuts(self) -> list[int]:
        """How many layers the drives may keep; the last one is all of them."""
        layers = self.told.layers
        return [cut for cut in range(1, len(layers)) if layers[cut].input_bytes is not None] + [len(layers)]

    def step_seconds(self, cut: int) -> float:
        """Return the mean seconds of a step with `cut` layers on the drives."""
        return StepSimulation(self, cut).mean_step_seconds()


def draw_case(rng: np.random.Generator) -> WorldCase:
    """Return a case, all of it drawn."""
    layers, drives = draw_model(rng), int(rng.choice(ranges.DRIVES))
    batch = int(rng.choice(ranges.BATCHES))
    slow = np.arange(drives) % 2 * (rng.random() < ranges.MIXED)
    batches, slowness = np.where(slow, batch // 2, batch), np.where(slow, 2.0, 1.0)
    compute, ratio = log_between(rng, ranges.COMPUTE_SECONDS), log_between(rng, ranges.HOST_RATIO)
    pushed = drives * sum(layer.weight_bytes for layer in layers)
    link_rate = pushed / (compute * log_between(rng, ranges.WIRE_OVER_COMPUTE))
    forward, backward = _true_layers(rng, layers, compute)
    measured = rng.random() < ranges.MEASURED
    told = Told(
        layers=layers,
        forward=forward * off(rng, ranges.TABLE_ERROR, len(layers)) if measured else None,
        backward=backward * off(rng, ranges.TABLE_ERROR, len(layers)) if measured else None,
        compute_seconds=compute,
        batches=tuple(batches.tolist()),
        slowness=tuple(slowness.tolist()),
        host_ratio=ratio,
        link_rate=link_rate,
        own_rate=link_rate * log_between(rng, ranges.OWN_LINK),
        latency_seconds=log_between(rng, ranges.LATENCY_SECONDS),
        encode_seconds=compute * between(rng, ranges.ENCODE),
        read_seconds=compute * between(rng, ranges.READ),
        overlapped=bool(rng.random() < ranges.OVERLAPPED),
    )
    return WorldCase(told, _draw_truth(rng, told, forward, backward))


def _true_layers(rng: np.random.Generator, layers: Sequence[DrawnLayer], compute: float) -> tuple[Floats, Floats]:
    """Return (layers,) forward and (layers,) backward seconds of a full batch on a drive; they add up to `compute`."""
    operations = np.array([layer.operations for layer in layers])
    linear = np.array([layer.linear for layer in layers])
    forward, backward = (operations * off(rng, ranges.ARITHMETIC_ERROR, len(layers)) for _ in range(2))
    forward = np.where(linear, operations * log_between(rng, ranges.LINEAR_FORWARD), forward)
    backward = np.where(linear, operations * log_between(rng, ranges.LINEAR_BACKWARD), backward)
    return compute / 3 * forward / forward.sum(), compute * 2 / 3 * backward / backward.sum()


def _draw_truth(rng: np.random.Generator, told: Told, forward: Floats, backward: Floats) -> Truth:
    drives, layers, steps = len(told.batches), len(told.layers), ranges.STEPS + _WARM_UP + 1
    batches = np.array(told.batches)
    scale = (np.array(told.slowness) * batches / batches.max() * off(rng, ranges.DEVICE, drives))[:, None]
    linear = np.array([layer.linear for layer in told.layers])
    host = (forward + backward) * batches.sum() / batches.max() / (told.host_ratio * off(rng, ranges.HOST_SPEED))
    host = host * off(rng, ranges.HOST_LAYER, layers) * np.where(linear, log_between(rng, ranges.HOST_LINEAR), 1.0)
    whole = sum(layer.weight_bytes for layer in told.layers)
    link_rate = told.link_rate * between(rng, ranges.EFFICIENCY) / (1 + between(rng, ranges.CROWDING) * (drives - 1))
    grouped = rng.random() < ranges.GROUPED
    port_rate, group_size = between(rng, ranges.GROUP_PORT), int(rng.integers(*ranges.GROUP_SIZE, endpoint=True))
    return Truth(
        forward=forward * scale,
        backward=backward * scale,
        tail_seconds=np.append(np.cumsum(host[::-1])[::-1], 0.0),
        encode_rate=told.encode_seconds / whole * float(off(rng, ranges.ENCODE_ERROR)),
        read_seconds=told.read_seconds * batches / batches.max(),
        own_rate=told.own_rate * off(rng, ranges.DEVICE, drives),
        group=np.arange(drives) // (group_size if grouped else drives),
        port_rate=link_rate * (port_rate if grouped else 1.0),
        link_rate=link_rate,
        latency_seconds=told.latency_seconds * float(off(rng, ranges.LATENCY)),
        message_seconds=log_between(rng, ranges.MESSAGE_SECONDS),
        receive_rate=log_between(rng, ranges.RECEIVE_RATE),
        sum_rate=log_between(rng, ranges.SUM_RATE),
        step_factor=_step_factors(rng, steps, drives),
        link_factor=_wander(rng, steps),
    )


def _step_factors(rng: np.random.Generator, steps: int, drives: int) -> Floats:
    factors = off(rng, between(rng, ranges.STEP_NOISE), (steps, drives))
    share = between(rng, ranges.STRAGGLING)
    for drive in range(drives):
        for step in np.flatnonzero(rng.random(steps) < share).tolist():
            until = step + int(rng.geometric(1 / ranges.STRAGGLING_STEPS))
            factors[step:until, drive] *= between(rng, ranges.STRAGGLER)
    return np.asarray(factors)


def _wander(rng: np.random.Generator, steps: int) -> Floats:
    deviation, memory = between(rng, ranges.LINK_NOISE), ranges.LINK_MEMORY
    level, found = float(rng.normal(0.0, deviation)), []
    for _ in range(steps):
        found.append(level)
        level = memory * level + math.sqrt(1 - memory**2) * float(rng.normal(0.0, deviation))
    return np.asarray(np.exp(-np.abs(np.array(found))))


class Direction:
    """All streams of one direction: each sends one message at a time, the most urgent of those that wait."""

    def __init__(self, truth: Truth, arrived: Callable[[float, int, object], None]) -> None:
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


def share_fairly(truth: Truth, active: npt.NDArray[np.bool_]) -> Floats:
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

    def __init__(self, case: WorldCase, cut: int) -> None:
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
        wanted = ranges.STEPS + _WARM_UP + 1
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
        return (self._began[-1] - self._began[_WARM_UP]) / ranges.STEPS

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
