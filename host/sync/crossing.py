"""One step across the cut of a model: what drives hand over comes together, goes through the tail, and back."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from firmware_agent.crossing import LABELS, RANDOM, activation_specs, gradient_specs, is_random_state
from firmware_agent.cutting import Crossing
from firmware_agent.errors import DeviceFailed, ModelFailed, ProtocolError
from firmware_agent.exchange import Array, Assembler, cut_slices
from firmware_agent.folded_traceback import MAX_MESSAGE_BYTES, bounded
from firmware_agent.wire import ActivationGradients, Activations, AnyFrame, Slice, encode, pack
from host.scanning import squares
from host.sync.tail import Back, Batch, Tail, TailPass


def part_sizes(records: int, micro_batch: int) -> tuple[int, ...]:
    """Return how many records a drive computes at a time, one part after the other."""
    return tuple(map(len, np.array_split(np.empty(records, np.uint8), -(-records // micro_batch))))


class Answer(NamedTuple):
    """What goes back for a part: the frame that announces it, and the gradients by the names that it gives."""

    announced: ActivationGradients
    arrays: Mapping[str, Array]

    def messages(self) -> list[bytes]:
        """Return all of it, encoded."""
        return list(pack(map(encode, (self.announced, *cut_slices(self.announced.step, self.arrays)))))


class Crossings:
    """The parts of one step, by participant: part k goes through the tail when all have sent theirs who have one.

    A participant that is lost is waited for no longer; what it has handed over before stays in the tail's gradient.

    Attributes:
        passing: what has gone through.
        failure: of the model in the host's part; None while it did what it should.
    """

    def __init__(
        self,
        tail: Tail,
        step: int,
        parts: Mapping[str, Sequence[int]],
        ready: asyncio.Event | None = None,
        keep: bool = False,
    ) -> None:
        """Begin a step.

        Args:
            tail: computes.
            step: its number.
            parts: participant -> records of each of its parts, in participant order.
            ready: set when the tail has the weights of this step; None if it has.
            keep: what has gone through, for `compute_without`.
        """
        self._ready, self._kept = ready, list[Sequence[Batch]]() if keep else None
        self._tail, self._step, self._parts = tail, step, {device: tuple(sizes) for device, sizes in parts.items()}
        self.passing: TailPass = tail.begin(step)
        self._left: set[str] = set()
        self._waiting: dict[int, dict[str, tuple[Batch, asyncio.Future[Back | DeviceFailed]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.failure: ModelFailed | None = None

    def alone(self, device: str, sizes: Sequence[int]) -> Crossings:
        """Return the same step for a device that is only watched: it has the tail for itself, and nothing counts."""
        return Crossings(self._tail, self._step, {device: sizes}, self._ready)

    def hand(self, device: str) -> Hand:
        """Return what takes a participant's frames."""
        tail = self._tail
        return Hand(tail.point.crossing, tail.answers, tail.classes, self._step, device, self._parts[device])

    @property
    def mixed(self) -> bool:
        """Whether a participant that was lost is in the tail's gradient."""
        return not self._left.isdisjoint(self.passing.devices)

    async def add(self, part: int, batch: Batch) -> Back | DeviceFailed:
        """Take a participant's part, and return what goes back to it when the tail has computed, or failed.

        A part too small for the tail, or with values that are not finite, fails for this participant alone. How long it
        may take is the caller's to limit; a
        caller that gives up must call `leave`.
        """
        if len(batch.labels) < self._tail.smallest:
            return DeviceFailed(
                f"batch normalisation cannot train on a single value per channel, which part {part} of the records of "
                f"{batch.device}, {len(batch.labels)} of them, comes to in the host's part of the model; give this "
                "drive a larger batch or micro_batch, or choose batch_norm: synchronised or frozen"
            )
        if not all(squares(np.asarray(values)).finite for values in batch.values):  # they would be in all gradients
            return DeviceFailed(
                f"what crosses the cut in part {part} of the records of {batch.device} has values that are no finite "
                "numbers; if other drives' are finite it is broken, else lower learning_rate"
            )
        future: asyncio.Future[Back | DeviceFailed] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(part, {})[batch.device] = batch, future
        self._compute_complete()
        return await future

    def compute_without(self, late: Collection[str]) -> TailPass:
        """Return the pass as it would have been without these participants; it is computed anew, from what was kept."""
        passing = self._tail.begin(self._step)
        for batches in self._kept or ():
            if rest := [batch for batch in batches if batch.device not in late]:
                passing.compute(rest)
        return passing

    def leave(self, device: str) -> None:
        """Go on without a participant."""
        if device in self._parts:
            self._left.add(device)
            for waiting in self._waiting.values():
                waiting.pop(device, None)
            self._compute_complete()

    async def settle(self) -> None:
        """Wait until nothing is computed any more of what has come so far."""
        await asyncio.gather(*self._tasks)

    def _compute_complete(self) -> None:
        for part, waiting in list(self._waiting.items()):
            due = [device for device, sizes in self._parts.items() if len(sizes) > part and device not in self._left]
            if due and all(device in waiting for device in due):
                del self._waiting[part]
                task = asyncio.ensure_future(self._compute([waiting[device] for device in due]))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _compute(self, waiting: Sequence[tuple[Batch, asyncio.Future[Back | DeviceFailed]]]) -> None:
        outcomes: Sequence[Back | DeviceFailed]
        batches = [batch for batch, _ in waiting]
        if self._ready is not None:
            await self._ready.wait()
        try:
            outcomes = await asyncio.to_thread(self.passing.compute, batches)
            if self._kept is not None:
                self._kept.append(batches)
        except (Exception, SystemExit) as error:  # the user's model may raise anything
            told = f"the host's part of the model: {bounded(repr(error), MAX_MESSAGE_BYTES)}"
            self.failure = ModelFailed(told)
            self.failure.__cause__ = error
            outcomes = [DeviceFailed(told)] * len(waiting)
        for (_, future), outcome in zip(waiting, outcomes, strict=True):
            if not future.done():
                future.set_result(outcome)


class Hand:
    """Takes what one device hands over in one step, part by part, and words the answers.

    Attributes:
        up_bytes, down_bytes: that crossed the wire for it so far; whoever sends and receives adds them up.
        names: of the tensors that it has handed over.
        news: whether the last frame brought anything that was not there.
    """

    def __init__(
        self,
        crossing: Sequence[Crossing],
        answered: bool,
        classes: int,
        step: int,
        device: str,
        sizes: Sequence[int],
    ) -> None:
        """Begin with nothing.

        Args:
            crossing: what a device sends.
            answered: whether it needs the gradients of that.
            classes: labels count from 0 to one less.
            step: its number.
            device: its name.
            sizes: records of each of its parts.
        """
        self._crossing, self._answered, self._classes = list(crossing), answered, classes
        self._step, self._device, self._sizes = step, device, tuple(sizes)
        self._part = 0
        self._assembler: Assembler | None = None
        self.up_bytes, self.down_bytes = 0, 0
        self.names: dict[str, None] = {}
        self.news = True

    @property
    def part(self) -> int:
        """Which part is at hand."""
        return self._part

    def wants(self, frame: AnyFrame) -> bool:
        """Return whether a frame belongs to what is handed over."""
        return isinstance(frame, Activations) or (isinstance(frame, Slice) and self._assembler is not None)

    def take(self, frame: AnyFrame) -> Batch | None:
        """Take a frame; return the part when it is whole.

        Raises:
            ProtocolError: the frame does not belong there, or a label or a generator's state is none.
        """
        if isinstance(frame, Slice) and self._assembler is not None:
            self.news = self._assembler.add(frame)
            return self._batch(self._assembler) if self.news and self._assembler.complete else None
        self.news = True
        if not isinstance(frame, Activations) or self._assembler is not None:
            raise ProtocolError(f"{self._device} sent {type(frame).__name__} among its activations")
        if (frame.step, frame.part) != (self._step, self._part) or self._part >= len(self._sizes):
            raise ProtocolError(
                f"{self._device} sent part {frame.part} of step {frame.step}, it is at part {self._part} "
                f"of {len(self._sizes)} of step {self._step}"
            )
        drawn = any(spec.name == RANDOM for spec in frame.specs)
        expected = activation_specs(self._crossing, self._sizes[self._part], drawn)
        self._assembler = Assembler(self._step, frame.specs, expected)
        self.names |= dict.fromkeys(spec.name for spec in frame.specs)
        return None

    def answer(self, back: Back | DeviceFailed) -> Answer:
        """Return what answers the part at hand, or that its tail has failed; the next part may come then."""
        part, self._part, self._assembler = self._part, self._part + 1, None
        if isinstance(back, DeviceFailed):
            return Answer(ActivationGradients(self._step, part, 0.0, [], str(back)[:4000]), {})
        goes_on = RANDOM in self.names and part + 1 < len(self._sizes)
        specs = gradient_specs(self._crossing, self._sizes[part], goes_on, self._answered)
        there = back.gradients | ({} if back.random is None else {RANDOM: back.random})
        gradients = {spec.name: there[spec.name] for spec in specs}
        return Answer(ActivationGradients(self._step, part, back.loss, specs), gradients)

    def _batch(self, assembler: Assembler) -> Batch:
        arrays = assembler.arrays()
        labels, random = np.asarray(arrays.pop(LABELS), np.int64), arrays.pop(RANDOM, None)
        if len(odd := labels[(labels < 0) | (labels >= self._classes)]):
            raise ProtocolError(f"{self._device} sent the label {odd[0]}; the model knows 0 to {self._classes - 1}")
        if random is not None and not is_random_state(random):
            raise ProtocolError(f"{self._device} sent a state of its random generator that is none")
        return Batch(self._device, list(arrays.values()), labels, random)
