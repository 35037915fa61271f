"""Exchange of activations in one step: the drives' batches are joined, pass the host's part, and gradients go back."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from firmware_agent.common.errors import DeviceFailed, ModelFailed, ProtocolError, user_errors
from firmware_agent.common.folded_traceback import MAX_MESSAGE_BYTES, bounded
from firmware_agent.common.frames.session_frames import Slice
from firmware_agent.common.frames.step_frames import ActivationGradients, Activations
from firmware_agent.common.slices import Assembler
from firmware_agent.common.split.activations import LABELS, RANDOM, activation_specs, gradient_specs, is_random_state
from firmware_agent.common.wire import AnyFrame
from host.core.tensor_sums import squares
from host.training.contributions import Reason, Refusal, not_finite
from host.training.screening import Screen
from host.training.sync.exchange.step_extension import Answer, Reply, StepStage, StepWork
from host.training.sync.server_model.activation_types import (
    ActivationBatch,
    ActivationGrads,
    HandOver,
    ServerModelNotFinite,
)
from host.training.sync.server_model.server_model import ServerModel, ServerModelPass

Add = Callable[[int, ActivationBatch], Awaitable[ActivationGrads | DeviceFailed]]


class Waiting(NamedTuple):
    """A participant's part that waits for the others', with the root mean square of each tensor in it."""

    batch: ActivationBatch
    means: Mapping[str, float]
    answer: asyncio.Future[ActivationGrads | DeviceFailed]


class ActivationExchange:
    """The parts of one step, by participant, as its extension.

    Part k goes through the tail when all have sent theirs who have one. What does not pass the screen goes nowhere, and
    fails its participant's step. A participant that is lost is waited for no longer; what it has handed over before
    stays in the tail's gradient.

    Attributes:
        passing: what has gone through.
        refused: device -> why its part was; those who are watched are here, too.
        failure: of the model in the host's part; None while it did what it should.
    """

    def __init__(
        self,
        tail: ServerModel,
        step: int,
        parts: Mapping[str, Sequence[int]],
        ready: asyncio.Event | None = None,
        keep: bool = False,
        screen: Screen | None = None,
        refused: dict[str, Refusal] | None = None,
    ) -> None:
        """Begin a step.

        Args:
            tail: computes.
            step: its number.
            parts: participant -> records of each of its parts, in participant order.
            ready: set when the tail has the weights of this step; None if it has.
            keep: what has gone through, for `compute_without`.
            screen: judges what is handed over; None for a new one.
            refused: where to keep whose part was refused, so that nothing else of it counts either; None for nowhere.
        """
        self._screen, self.refused = screen or Screen(), {} if refused is None else refused
        self._ready, self._kept = ready, list[Sequence[ActivationBatch]]() if keep else None
        self._tail, self._step, self._parts = tail, step, {device: tuple(sizes) for device, sizes in parts.items()}
        self.passing: ServerModelPass = tail.begin(step)
        self._left: set[str] = set()
        self._waiting: dict[int, dict[str, Waiting]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.failure: ModelFailed | None = None

    def alone(self, work: StepWork) -> ActivationExchange:
        """Return the same step for a device that is only watched: it has the tail for itself, and nothing counts."""
        parts = {work.device: work.parts}
        return ActivationExchange(self._tail, self._step, parts, self._ready, refused=self.refused)

    def open(self, device: str) -> ActivationReceiver:
        """Return what takes a participant's frames."""
        return ActivationReceiver(self._tail.hand_over, self._step, device, self._parts[device], self.add)

    def refuses(self, device: str) -> bool:
        """Whether a device's step has failed because a part of it was refused."""
        return device in self.refused

    @property
    def mixed(self) -> bool:
        """Whether a participant that was lost is in the tail's gradient."""
        return not self._left.isdisjoint(self.passing.devices)

    async def add(self, part: int, batch: ActivationBatch) -> ActivationGrads | DeviceFailed:
        """Take a participant's part, and return what goes back to it when the tail has computed, or failed.

        A part that is refused, or too small for the tail, fails for this participant alone. How long it may take is the
        caller's to limit; a caller that gives up must call `leave`.
        """
        if len(batch.labels) < self._tail.smallest:
            return DeviceFailed(
                f"batch normalisation cannot train on a single value per channel, which part {part} of the records of "
                f"{batch.device}, {len(batch.labels)} of them, comes to in the host's part of the model; give this "
                "drive a larger batch or micro_batch, or choose batch_norm: synchronised or frozen"
            )
        means = self._mean_squares(batch)
        if batch.device in self.refused:
            self._compute_complete()
            return self._refusal(batch.device)
        waiting = Waiting(batch, means, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(part, {})[batch.device] = waiting
        self._compute_complete()
        return await waiting.answer

    def _mean_squares(self, batch: ActivationBatch) -> dict[str, float]:
        """Return the root mean square of what is handed over of each tensor; one that is not finite is refused."""
        found: dict[str, float] = {}
        for each, values in zip(self._tail.point.crossing, map(np.asarray, batch.values), strict=True):
            finite, total = squares(values)
            if not finite:
                self._refuse(batch.device, not_finite(each.name))
            if np.issubdtype(values.dtype, np.floating):
                found[each.name] = math.sqrt(total / max(1, values.size))
        return found

    def _refuse(self, device: str, why: Refusal) -> None:
        self.refused[device] = why
        self._left.add(device)

    def _refusal(self, device: str) -> DeviceFailed:
        return DeviceFailed(f"the host refuses what {device} hands over: {self.refused[device].detail}")

    def compute_without(self, late: Collection[str]) -> ServerModelPass:
        """Return the pass as it would have been without these participants; it is computed anew, from what was kept."""
        passing = self._tail.begin(self._step)
        for batches in self._kept or ():
            if rest := [batch for batch in batches if batch.device not in late]:
                passing.compute(rest, allow_not_finite=True)
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
                refused = self._screen.judge_activations({device: waiting[device].means for device in due})
                for device, why in refused.items():
                    self._refuse(device, why)
                    if not waiting[device].answer.done():
                        waiting[device].answer.set_result(self._refusal(device))
                if taken := [waiting[device] for device in due if device not in refused]:
                    task = asyncio.ensure_future(self._compute(taken))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)

    async def _compute(self, waiting: Sequence[Waiting]) -> None:
        if self._ready is not None:
            await self._ready.wait()
        outcomes = await self._outcomes([each.batch for each in waiting])
        for each in waiting:
            if not each.answer.done():
                each.answer.set_result(outcomes[each.batch.device])

    async def _outcomes(self, batches: Sequence[ActivationBatch]) -> dict[str, ActivationGrads | DeviceFailed]:
        """Return what comes of the parts of these devices, by device; whose alone fails is left out by the others."""
        devices = [batch.device for batch in batches]
        backs = await asyncio.to_thread(self._compute_all, batches)
        if isinstance(backs, BaseException):
            error = backs
            guilty = await asyncio.to_thread(self._at_fault, batches, error) if len(batches) > 1 else {}
            if 0 < len(guilty) < len(batches):
                faults = {device: self._fault(device, why) for device, why in guilty.items()}
                self._compute_complete()
                return faults | await self._outcomes([batch for batch in batches if batch.device not in guilty])
            if not isinstance(error, ServerModelNotFinite):
                self.failure, failed = _failure("the host's part of the model", error)
                return dict.fromkeys(devices, failed)
            backs = await asyncio.to_thread(self.passing.compute, batches, True)  # all diverge, and are told so
        if self._kept is not None:
            self._kept.append(batches)
        return dict(zip(devices, backs, strict=True))

    def _compute_all(self, batches: Sequence[ActivationBatch]) -> list[ActivationGrads] | BaseException:
        try:
            return self.passing.compute(batches)
        except user_errors() as error:  # returned, so that it is not taken for this task's own cancellation
            return error

    def _at_fault(self, batches: Sequence[ActivationBatch], error: BaseException) -> dict[str, BaseException]:
        """Return with which devices' parts alone the tail fails as it did with all."""
        guilty: dict[str, BaseException] = {}
        for batch in batches:
            try:
                self._tail.begin(self._step).compute([batch])
            except user_errors() as alone:
                if type(alone) is type(error):
                    guilty[batch.device] = alone
        return guilty

    def _fault(self, device: str, error: BaseException) -> DeviceFailed:
        """Refuse what a device handed over, or, where the user's model raised, note that it failed with it."""
        if isinstance(error, ServerModelNotFinite):
            detail = f"of what it hands over, and of nobody else's, the host's part of the model makes {error} that is "
            self._refuse(device, Refusal(Reason.NOT_FINITE, f"{detail}no finite number"))
            return self._refusal(device)
        self.failure, failed = _failure(f"the host's part of the model, with what {device} handed over", error)
        self._left.add(device)
        return failed


def _failure(where: str, error: BaseException) -> tuple[ModelFailed, DeviceFailed]:
    """Return what the run is told of an error of the user's model, and what the device is."""
    told = f"{where}: {bounded(repr(error), MAX_MESSAGE_BYTES)}"
    failure = ModelFailed(told)
    failure.__cause__ = error
    return failure, DeviceFailed(told)


class ActivationReceiver:
    """Takes what one device hands over in one step, part by part, and words the answers.

    Attributes:
        tensors: names of the tensors that it has handed over.
        news: whether the last frame brought anything that was not there.
    """

    def __init__(self, hand_over: HandOver, step: int, device: str, sizes: Sequence[int], add: Add) -> None:
        """Begin with nothing.

        Args:
            hand_over: what a device sends, and gets back.
            step: its number.
            device: its name.
            sizes: records of each of its parts.
            add: joins its parts with the others' (see `ActivationExchange.add`).
        """
        self._hand_over, self._crossing, self._add = hand_over, list(hand_over.crossing), add
        self._step, self._device, self._sizes = step, device, tuple(sizes)
        self._part = 0
        self._assembler: Assembler | None = None
        self.tensors: list[str] = []
        self.news = True

    def stage(self, frame: AnyFrame) -> StepStage | None:
        """Return `StepStage.ACTIVATIONS` of a frame that belongs to what is handed over."""
        belongs = isinstance(frame, Activations) or (isinstance(frame, Slice) and self._assembler is not None)
        return StepStage.ACTIVATIONS if belongs else None

    def owed(self, stage: StepStage) -> str:
        """Return what the device has done that sends something of this stage before all activations; or nothing."""
        if stage < StepStage.BACKWARD or self._part >= len(self._sizes):
            return ""
        done = "reported its step" if stage is StepStage.REPORT else "sent values of its backward pass"
        return f"{done} before it had handed over all activations"

    def take(self, frame: AnyFrame) -> Answer | None:
        """Take a frame; return what answers the part when it is whole.

        Raises:
            ProtocolError: the frame does not belong there, or a label or a generator's state is none.
        """
        if isinstance(frame, Slice) and self._assembler is not None:
            self.news = self._assembler.add(frame)
            whole = self.news and self._assembler.complete
            return functools.partial(self._answer, self._batch(self._assembler)) if whole else None
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
        self.tensors = list(dict.fromkeys([*self.tensors, *(spec.name for spec in frame.specs)]))
        return None

    async def _answer(self, batch: ActivationBatch) -> Reply:
        """Return what the host makes of a part, when it has."""
        return self.answer(await self._add(self._part, batch))

    def answer(self, back: ActivationGrads | DeviceFailed) -> Reply:
        """Return what answers the part at hand, or that its tail has failed; the next part may come then."""
        part, self._part, self._assembler = self._part, self._part + 1, None
        if isinstance(back, DeviceFailed):
            return Reply(ActivationGradients(self._step, part, 0.0, [], str(back)[:4000]))
        goes_on = RANDOM in self.tensors and part + 1 < len(self._sizes)
        specs = gradient_specs(self._crossing, self._sizes[part], goes_on, self._hand_over.answered)
        there = back.gradients | ({} if back.random is None else {RANDOM: back.random})
        gradients = {spec.name: there[spec.name] for spec in specs}
        return Reply(ActivationGradients(self._step, part, back.loss, specs), gradients)

    def _batch(self, assembler: Assembler) -> ActivationBatch:
        arrays = assembler.arrays()
        labels, random = np.asarray(arrays.pop(LABELS), np.int64), arrays.pop(RANDOM, None)
        if len(odd := labels[(labels < 0) | (labels >= self._hand_over.classes)]):
            raise ProtocolError(
                f"{self._device} sent the label {odd[0]}; the model knows 0 to {self._hand_over.classes - 1}"
            )
        if random is not None and not is_random_state(random):
            raise ProtocolError(f"{self._device} sent a state of its random generator that is none")
        return ActivationBatch(self._device, list(arrays.values()), labels, random)
