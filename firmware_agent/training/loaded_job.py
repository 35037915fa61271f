"""A job as a drive holds it: the model, and the records of the shard."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from firmware_agent.clock import Stopwatch
from firmware_agent.common.datafiles.record_set import Column
from firmware_agent.common.errors import ModelError
from firmware_agent.common.frames.session_frames import Job
from firmware_agent.common.losses.objective import Batch, Objective, describe_range
from firmware_agent.common.models import build_model
from firmware_agent.common.shard import Shard
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.split.cutting import Cut, CutPoint, cut_model
from firmware_agent.common.sync_batch_norm import StatisticsExchange, freeze_statistics, synchronise


class LoadedJob:
    """The model in training mode, and the records that it is trained on.

    A shard that fits into memory is read once; taking a batch from it is work in which the task is always runnable, and
    counts as part of the forward phase. From a larger one batches come straight from flash: they may wait, so taking
    them is not counted. What a real drive's flash would take is composed from the bytes read either way.

    Attributes:
        model: built with the job's seed, in the job's precision, with batch normalisation as the job wants it; of a
            job with a cut the front alone.
        point: where the model is cut; None if it is whole.
        meeting: where synchronised batch normalisation exchanges.
        objective: what the model takes, and the loss.
        samples: how many records the shard has.
        resident: whether they are in memory.
        in_place: whether they lie in the drive in place, so that it draws them itself.
    """

    def __init__(self, job: Job, shard: Shard, stopwatch: Stopwatch) -> None:
        """Build the job's model and load the shard.

        Raises:
            ModelError: the model or the loss cannot be made here, or the shard's records have not what it takes.
            ConfigurationError: it cannot be cut where the job says.
        """
        self.objective, self._stopwatch = Objective.of_job(job), stopwatch
        if job.input_fields[0] not in shard.fields:
            raise ModelError(
                f"data.input: the shard's records have no {job.input_fields[0]!r}, but {', '.join(shard.fields)}; make "
                "the array again"
            )
        self._fields, self.resident = _load(shard)
        self.samples, self.in_place = shard.samples, shard.holding is not None
        self.point: CutPoint | None = None
        self._freeze = job.freeze
        spec = ShippedCode(job.model, job.source, job.arguments)
        if job.cut is None:
            self.model = self._build(spec, job.seed)
        else:
            cut = build_front(lambda: self._build(spec, job.seed), self.inputs(self.take(np.arange(1)))[0], job.cut)
            self.model, self.point = cut.front, cut.point
        self.meeting = StatisticsExchange()
        if job.batch_norm == "synchronised":
            self.model = synchronise(self.model, self.meeting)
        elif job.batch_norm == "frozen":
            freeze_statistics(self.model)

    def _build(self, spec: ShippedCode, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return build_model(spec, self._freeze).train().to(self.objective.dtype)

    def take(self, index: npt.NDArray[np.integer]) -> Batch:
        """Return the records at these places in the shard, as stored."""
        return {name: column[index] for name, column in self._fields.items()}

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the mean loss of these records, charged to the forward phase.

        Raises:
            ModelError: the model raised IndexError, and may not take their whole numbers.
            BaseException: model or loss raised.
        """
        if not self.resident:
            self._stopwatch.mark()
        ready = self.objective.prepare(batch)
        try:
            outputs = self.model(*self.objective.inputs(ready))
        except IndexError as error:
            if not (whole := self.objective.whole_fields(ready)):
                raise
            raise ModelError(
                f"the model failed: {error!r}; if in an embedding, "
                f"{describe_range(whole, 'in this batch', 'the model')}"
            ) from error
        loss = self.objective.loss_of(outputs, ready)
        self._stopwatch.lap("forward")
        return loss

    def front(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """Return what the front of a model computes of these records, charged to the forward phase."""
        if not self.resident:
            self._stopwatch.mark()
        values: tuple[torch.Tensor, ...] = self.model(*self.inputs(batch))
        self._stopwatch.lap("forward")
        return values

    def inputs(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """Return records as the model takes them, not augmented."""
        return self.objective.inputs(self.objective.prepare(batch, training=False))


def size_of(batch: Batch) -> tuple[int, int]:
    """Return how many records a batch has, and their bytes."""
    columns = batch.values()
    return len(next(iter(columns))), sum(column.nbytes for column in columns)


def _load(shard: Shard) -> tuple[Mapping[str, Column], bool]:
    """Return the records, and whether they are in memory: if they take at most a quarter of what is free."""
    if sum(column.nbytes for column in shard.fields.values()) > free_bytes() // 4:
        return shard.fields, False
    every = np.arange(shard.samples)
    return {name: column[every] for name, column in shard.fields.items()}, True


def build_front(build: Callable[[], nn.Module], images: torch.Tensor, layer: str) -> Cut:
    """Return a cut of which the front has memory; of a model that would fill half of what is free, nothing else has.

    Such a model is built without memory, on torch's meta device, and its front's values are left open: whoever asks
    for it sends them before each step. A front that keeps values which are not in its state, or a model that cannot be
    built so, is built as any other, and may turn out to be too large.

    Args:
        build: makes the model.
        images: what it takes, one record at least.
        layer: that the host's part begins with.

    Raises:
        ConfigurationError: the model cannot be cut there.
    """
    lean = _cut_without_memory(build, images, layer)
    return cut_model(build(), images, layer) if lean is None else lean


def free_bytes() -> int:
    """Return how much memory is free."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class _Unfilled(TorchFunctionMode):
    """A context in which tensors are not filled at random: on the meta device torch imports its compiler for that.

    In an emulated drive that takes 10 s of wall time.
    """

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        fills = getattr(function, "__module__", "") == nn.init.__name__ or function.__name__ in ("uniform_", "normal_")
        return (*arguments, *(keywords or {}).values())[0] if fills else function(*arguments, **(keywords or {}))


def _cut_without_memory(build: Callable[[], nn.Module], images: torch.Tensor, layer: str) -> Cut | None:
    try:
        with torch.device("meta"), _Unfilled():
            model = build()
        if _state_bytes(model) < free_bytes() // 2:
            return None
        cut = cut_model(model, images.to("meta"), layer)
    except Exception:  # the user's model may compute with values that are not there; in earnest it says what is wrong
        return None
    if {name for name, _ in cut.front.named_buffers()} - cut.front.state_dict().keys():
        return None
    cut.front.to_empty(device="cpu")
    return cut


def _state_bytes(model: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
