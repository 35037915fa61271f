"""Sums within a step, for batch normalisation over all participants: one array of each, the same sum to each.

How many sums a step has, and of how many values each, is known from the host's own copy of the model. A participant's
values are screened before they are added up: they are finite, count the records that it was dealt, and have a root mean
square that is not out of proportion to the others'.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.frames.step_frames import Reduce, Reduced
from firmware_agent.common.wire import AnyFrame
from host.core.evaluation import NormSum
from host.core.tensor_sums import squares
from host.training.contributions import Reason, Refusal, not_finite
from host.training.screening import EXPLODING, Screen
from host.training.sync.exchange.step_extension import Answer, Reply, StepStage, StepWork

_ITEM_BYTES = 8
# Counts are products of whole numbers that float64 has; a quotient of them need not be one.
_COUNT_TOLERANCE = 1e-9

Values = npt.NDArray[np.float64]


class _Sum:
    """One exchange: what has come in, and the result once all who are left have sent theirs."""

    def __init__(self) -> None:
        self.parts: dict[str, Values] = {}
        self.done = asyncio.Event()
        self.result = b""


class Reductions:
    """The sums of one step, as its extension.

    A participant that is lost is dropped with what it sent of sums that are not done, so that nobody waits for it.

    Attributes:
        count: how many sums the step has.
        forward: how many of them are due in the forward pass: the first ones.
        sent: participant -> of how many sums it has sent its values.
    """

    # Nothing of the user's model is computed here.
    failure = None

    def __init__(
        self,
        step: int,
        records: Mapping[str, int],
        sums: Sequence[NormSum] = (),
        screen: Screen | None = None,
        refused: dict[str, Refusal] | None = None,
    ) -> None:
        """Begin a step.

        Args:
            step: its number.
            records: participant -> records dealt to it; sums run in this order.
            sums: that a step of the job's model has; none unless it normalises over all participants.
            screen: compares the participants' values; None for a new one.
            refused: where to keep whose values were refused, so that nothing else of it counts; None for nowhere.
        """
        self._step, self._records, self._participants, self._sums = step, dict(records), list(records), tuple(sums)
        self._screen, self._refused = screen or Screen(), {} if refused is None else refused
        self.count, self.forward = len(sums), sum(1 for each in sums if each.record_count)
        self.sent = dict.fromkeys(records, 0)
        self._here = set(records)
        self._sums_of_step: dict[int, _Sum] = {}
        self._done = 0

    async def add(self, device: str, frame: Reduce) -> bytes:
        """Take one participant's values; return their sum when those of all who are left are there.

        Values that are refused are in no sum from then on; their participant gets the others', so that its step ends.

        How long that may take the others' deadlines limit: whoever owes values is given up. A caller that gives up must
        call `leave`.

        Raises:
            ProtocolError: the device does not take part, the job has no such sum, this is not its next exchange, the
                size is not the model's. Nothing is added up.
        """
        self._check(device, frame)
        values = np.frombuffer(frame.values, "<f8")
        if device in self._participants and (why := self._judge(device, frame.index, values)) is not None:
            self._refused[device] = why
            self._participants.remove(device)
        self.sent[device] += 1
        if not self._participants:  # nobody is left whose values count
            self._done = max(self._done, frame.index + 1)
            self._finish_complete()  # whoever was refused before waits for nobody any more
            return frame.values
        pending = self._sums_of_step.setdefault(frame.index, _Sum())
        if not pending.done.is_set():
            pending.parts[device] = values
            self._finish_complete()
        await pending.done.wait()
        return pending.result or frame.values

    def leave(self, device: str) -> None:
        """Go on without this device; if it has left already, or never was there, nothing happens."""
        self._here.discard(device)
        if device in self._participants:
            self._participants.remove(device)
            self._finish_complete()

    def open(self, device: str) -> DeviceSums:
        """Return what takes a participant's frames."""
        return DeviceSums(self, self._step, device)

    def alone(self, work: StepWork) -> Reductions:
        """Return the same step for a device that is only watched, judged by a screen of its own."""
        return Reductions(self._step, {work.device: len(work.records)}, self._sums)

    def refuses(self, device: str) -> bool:
        """Whether a device's step has failed because of this: it goes on, whoever is refused."""
        return False

    def _check(self, device: str, frame: Reduce) -> None:
        if device not in self._here:
            raise ProtocolError(f"{device} sent values to add up in a step that it does not take part in")
        if frame.index >= self.count:
            raise ProtocolError(f"{device} sent values for sum {frame.index}; a step of this job has {self.count}")
        if frame.index != self.sent[device] or frame.index > self._done:
            due = self._done if frame.index == self.sent[device] else self.sent[device]
            raise ProtocolError(f"{device} sent values for sum {frame.index}, its next is {due}")
        due_bytes = self._sums[frame.index].values * _ITEM_BYTES
        if len(frame.values) != due_bytes:
            raise ProtocolError(
                f"{device} sent {len(frame.values)} bytes for sum {frame.index}, where {due_bytes} were due; "
                "do all drives run the same model?"
            )

    def _judge(self, device: str, index: int, values: Values) -> Refusal | None:
        name, counted = _name(index), self._sums[index].record_count * self._records[device]
        if not squares(values).finite:
            return not_finite(name)
        if counted and not math.isclose(values[0], counted, rel_tol=_COUNT_TOLERANCE):
            return Refusal(
                Reason.SAMPLES,
                f"its values for {name} are of {values[0]:g} places; the {self._records[device]} records that it was "
                f"dealt have {counted:g}",
                name,
            )
        return None

    def _finish_complete(self) -> None:
        for index, pending in self._sums_of_step.items():
            if not pending.done.is_set() and all(device in pending.parts for device in self._participants):
                self._finish(index, pending)

    def _finish(self, index: int, pending: _Sum) -> None:
        """Add up in participant order what passes the screen; whoever is refused learns that at once."""
        name, counts = _name(index), bool(self._sums[index].record_count)
        values = {device: pending.parts[device][int(counts) :] for device in self._participants}
        means = {
            device: {name: math.sqrt(squares(own).total / max(1, own.size)) / max(1, self._records[device])}
            for device, own in values.items()
        }
        # At an epoch's end one drive may have a few records left, in whose sums little cancels out.
        refused = self._screen.judge_activations(means, "of the sums of batch normalisation", EXPLODING)
        self._refused.update(refused)
        self._participants = [device for device in self._participants if device not in refused]
        total = np.zeros(self._sums[index].values)
        for device in self._participants:
            total += pending.parts[device]
        pending.result = total.astype("<f8").tobytes() if self._participants else b""
        pending.parts.clear()
        self._done = max(self._done, index + 1)
        pending.done.set()


@dataclass(frozen=True)
class DeviceSums:
    """One device's end of a step's sums."""

    sums: Reductions
    step: int
    device: str
    # Sums have frames of their own, each with new values.
    tensors: ClassVar[Sequence[str]] = ()
    news: ClassVar[bool] = True

    def stage(self, frame: AnyFrame) -> StepStage | None:
        """Return when the values of a frame are due; None if it is not of this step's sums."""
        if not isinstance(frame, Reduce) or frame.step != self.step:
            return None
        return StepStage.FORWARD if frame.index < self.sums.forward else StepStage.BACKWARD

    def owed(self, stage: StepStage) -> str:
        """Return what the device has done that sends something of this stage before its values; or nothing."""
        sent, forward, whole = self.sums.sent[self.device], self.sums.forward, self.sums.count
        if stage is StepStage.ACTIVATIONS and sent < forward:
            return f"handed over activations after {sent} of {forward} sums of batch normalisation"
        if stage is StepStage.REPORT and sent < whole:
            told = f"reported its step after {sent} of {whole} sums of batch normalisation"
            return f"{told}; do all drives run the same model?"
        return ""

    def take(self, frame: AnyFrame) -> Answer | None:
        """Take values; their sum answers them (see `Reductions.add`)."""
        return functools.partial(self._add, frame) if isinstance(frame, Reduce) else None

    async def _add(self, frame: Reduce) -> Reply:
        return Reply(Reduced(self.step, frame.index, await self.sums.add(self.device, frame)))


def _name(index: int) -> str:
    return f"sum {index} of batch normalisation"
