"""A synchronous step in the drive: the gradient of the mean loss over the records that the host names.

The drive keeps no optimiser: the host steps, and sends the weights of the next step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from firmware_agent.clock import Stopwatch
from firmware_agent.common.datafiles.record_set import LABEL, target_of
from firmware_agent.common.errors import DeviceFailed, ProtocolError
from firmware_agent.common.first_use import forward_order
from firmware_agent.common.frames.frame_fields import MAX_STEP_RECORDS
from firmware_agent.common.frames.session_frames import Job
from firmware_agent.common.frames.step_frames import OwnRecords, Reduce, Step
from firmware_agent.common.losses.objective import Batch
from firmware_agent.common.split.activations import device_number, epoch_order, step_seed
from firmware_agent.common.sync_batch_norm import Reduction, Values, alone
from firmware_agent.common.weights import buffer_names, trained_names
from firmware_agent.training.cut_pass import Cross, CutPass, Ends
from firmware_agent.training.loaded_job import LoadedJob, size_of

Index = npt.NDArray[np.uint32]
Meet = Callable[[Reduce], bytes]
"""Sends values to the host; returns their sum over all participants, little-endian float64."""

_ONE_VALUE = "more than 1 value per channel"  # of torch's own message


class LocalStep(NamedTuple):
    """What a step did; `loss` is the mean over its records."""

    samples: int
    loss: float
    read_bytes: int


class PassHooks(Protocol):
    """What happens around the passes of a step, one forward and one backward for each part of its records."""

    def forward(self) -> AbstractContextManager[object]:
        """Return the context that a forward pass runs in."""

    def backward(self, last: bool) -> None:
        """Take note that a backward pass begins, and whether it is the step's last."""


class GivenGradients(torch.autograd.Function):
    """A value of 0 whose backward pass begins with given gradients, one for each tensor it is made of.

    `torch.autograd.backward` takes gradients too, but imports 500 modules first: 1 s of an emulated drive's own clock.
    """

    @staticmethod
    def forward(ctx: Any, gradients: Sequence[torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
        """Return the value; each gradient has the shape of its tensor, of which there is one at least."""
        ctx.gradients = gradients
        return tensors[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients."""
        return None, *ctx.gradients


class GradientWorker:
    """Computes gradients at the weights that lie in the model, one step after the other.

    Attributes:
        model: that it computes with.
        trained: names of the parameters that it has gradients of, in the model's order.
        buffers: names of the buffers that it sends.
    """

    def __init__(self, job: Job, loaded: LoadedJob, device: str, stopwatch: Stopwatch) -> None:
        """Take over a loaded job.

        Args:
            job: what to train and how.
            loaded: its model, or the front of it, and this drive's records.
            device: this drive's name, which makes its random draws its own.
            stopwatch: charges the phases.
        """
        self._job, self._loaded, self._stopwatch = job, loaded, stopwatch
        self._device, self._phase = device, "forward"
        self.model = loaded.model
        self._parameters = dict(loaded.model.named_parameters())
        self.trained = trained_names(loaded.model)
        self.buffers = [] if job.batch_norm == "frozen" else buffer_names(loaded.model)
        self._order: list[str] | None = None
        # Of records that lie here in place: an epoch, and their order in it.
        self._drawn: tuple[int, Index] | None = None

    def compute(
        self,
        task: Step,
        meet: Meet,
        hooks: PassHooks,
        cross: Cross,
    ) -> LocalStep:
        """Leave the gradient of the mean loss over the step's records in the model.

        Random draws, such as dropout masks, depend on the job's seed, the drive and the step's number alone. Records
        are computed in parts of nearly equal size, each of at most `task.micro_batch`; a part of m records out of b
        counts m / b. Synchronised batch normalisation exchanges by `meet`, with the stopwatch stopped; `hooks` are
        told of the passes. What crosses the cut of a model goes by `cross`.

        Raises:
            ProtocolError: the records are no whole indices, or more than there are to draw; or the host names single
                ones of those in place.
            DeviceFailed: a record is not in this drive's shard, and nothing was computed; or batch normalisation
                cannot work on batches of this size; or the host's part of the model failed.
        """
        index = self._checked(task)
        for parameter in self._parameters.values():
            parameter.grad = None
        torch.manual_seed(step_seed(self._job.seed, self._device, task.step))
        try:
            if task.timed == "forward":
                return self._pass_forward(index, task.micro_batch)
            point = self._loaded.point
            crossing = None if point is None else CutPass(point.crossing, task.step, cross, self._stopwatch)
            self._loaded.meeting.reduce = self._charged(task.step, meet)
            return self._accumulate(index, task.micro_batch, hooks, crossing)
        except ValueError as error:
            if _ONE_VALUE not in str(error):
                raise
            raise DeviceFailed(
                f"step {task.step}: batch normalisation cannot train on a single value per channel, which a batch of "
                f"{len(index)} in parts of {task.micro_batch} comes to; give this drive larger ones, or choose "
                "batch_norm: synchronised or frozen"
            ) from error
        finally:
            self._loaded.meeting.reduce = alone

    def parameter(self, name: str) -> torch.nn.Parameter:
        """Return a parameter of the model."""
        return self._parameters[name]

    def forward_order(self) -> list[str]:
        """Return the order of first use; it is found once, while the stopwatch stands still."""
        if self._order is None:
            self._order = forward_order(self.model, *self._loaded.inputs(self._loaded.take(np.arange(1))))
        return self._order

    def _checked(self, task: Step) -> Index:
        index = self._named(task)
        outside = index[index >= self._loaded.samples]
        if len(outside):
            raise DeviceFailed(
                f"step {task.step} names record {outside[0]}, but this drive holds {self._loaded.samples} and no other "
                "drive's; send indices into its own shard"
            )
        if self._job.batch_norm == "synchronised" and len(index) > task.micro_batch:
            raise DeviceFailed(
                f"step {task.step}: {len(index)} records in parts of {task.micro_batch}, but synchronised batch "
                "normalisation needs them at once; leave micro_batch out, or choose batch_norm: device or frozen"
            )
        return index

    def _named(self, task: Step) -> Index:
        """Return the records of a step, by the host's indices or by this drive's own order of the epoch."""
        if not isinstance(task.records, OwnRecords):
            if self._loaded.in_place:
                raise ProtocolError(f"step {task.step}: the host names single records of those that lie here in place")
            if len(task.records) % 4:
                raise ProtocolError(f"step {task.step}: {len(task.records)} bytes are no whole indices of records")
            return np.frombuffer(task.records, "<u4")
        epoch, runs = task.records.epoch, task.records.runs
        if sum(count for _, count in runs) > MAX_STEP_RECORDS or max(map(sum, runs)) > self._loaded.samples:
            raise ProtocolError(
                f"step {task.step}: the host asks for more than {MAX_STEP_RECORDS} records, or beyond the "
                f"{self._loaded.samples} that lie here"
            )
        if self._drawn is None or self._drawn[0] != epoch:
            order = epoch_order(self._job.seed, device_number(self._device), epoch, 0, self._loaded.samples)
            self._drawn = epoch, order.astype(np.uint32)
        return np.concatenate([self._drawn[1][begin : begin + count] for begin, count in runs])

    def _accumulate(self, index: Index, micro_batch: int, hooks: PassHooks, crossing: CutPass | None) -> LocalStep:
        loss_sum, read_bytes = 0.0, 0
        self._stopwatch.mark()
        parts = np.array_split(index, -(-len(index) // micro_batch))
        for number, part in enumerate(parts, 1):
            batch = self._loaded.take(part)
            self._phase = "forward"
            ends = self._forward(batch, hooks, crossing, last=number == len(parts))
            self._phase = "backward"
            hooks.backward(last=number == len(parts))
            share = len(part) / len(index)
            if crossing is None:
                (ends.tensors[0] * share).backward()  # type: ignore[no-untyped-call]
            elif ends.tensors:
                GivenGradients.apply([each * share for each in ends.gradients], *ends.tensors).backward()  # type: ignore[no-untyped-call]
            loss_sum += ends.loss * len(part)
            read_bytes += size_of(batch)[1]
            self._stopwatch.lap("backward")
        return LocalStep(len(index), loss_sum / len(index), read_bytes)

    def _pass_forward(self, index: Index, micro_batch: int) -> LocalStep:
        """Run the records through the model, or the front of it, without any exchange."""
        self._stopwatch.mark()
        run = self._loaded.forward if self._loaded.point is None else self._loaded.front
        for part in np.array_split(index, -(-len(index) // micro_batch)):
            run(self._loaded.take(part))
            self._stopwatch.lap("forward")
        return LocalStep(len(index), 0.0, 0)

    def _forward(self, batch: Batch, hooks: PassHooks, crossing: CutPass | None, last: bool) -> Ends:
        if crossing is not None:
            with hooks.forward():
                values = self._loaded.front(batch)
            return crossing.ends(values, batch[target_of(batch) or LABEL], last)
        with hooks.forward():
            loss = self._loaded.forward(batch)
        return Ends([loss], [torch.ones_like(loss)], loss.item())

    def _charged(self, step: int, meet: Meet) -> Reduction:
        """Return `meet` for a step: work up to an exchange is charged, the exchange itself is not."""
        numbers = itertools.count()

        def reduce(values: Values) -> Values:
            self._stopwatch.lap(self._phase)
            total = meet(Reduce(step, next(numbers), values.astype("<f8").tobytes()))
            self._stopwatch.mark()
            return np.frombuffer(total, "<f8").astype(np.float64)

        return reduce
