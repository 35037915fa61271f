"""What training minimises: which field of a record the model takes, and the loss of its outputs.

A loss is a function of the model's outputs and of the batch, field -> (records, ...) tensor, that returns a scalar: the
mean over the records, so that parts of a batch, and drives' batches, can be added up by how many records they have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from firmware_agent.common.errors import ModelError
from firmware_agent.common.frames.session_frames import Job
from firmware_agent.common.losses.built_in_losses import LOSSES
from firmware_agent.common.shipped_code import ShippedCode, make_code
from firmware_agent.common.slices import Array

Batch = Mapping[str, Array]
"""Field -> (records, ...) values, as stored."""
Loss = Callable[..., torch.Tensor]

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class ObjectiveSpec:
    """What is minimised, as it crosses the wire.

    Attributes:
        loss: of the model's outputs and the batch.
        input_field: of a record, that the model takes.
        input_scale: what bytes of it are multiplied by.
    """

    loss: ShippedCode
    input_field: str
    input_scale: float


@dataclass(frozen=True)
class Objective:
    """What a model takes and what is minimised.

    Attributes:
        input_field, input_scale: as in its spec.
        loss: returns the mean loss.
        loss_name: for messages.
        dtype: of the model's parameters.
    """

    input_field: str
    input_scale: float
    loss: Loss
    loss_name: str
    dtype: torch.dtype = torch.float32

    @classmethod
    def of_job(cls, job: Job) -> Objective:
        """Return what a drive's job says.

        Raises:
            ModelError: its loss cannot be imported.
        """
        loss = ShippedCode(job.loss.name, job.loss.source, job.loss.arguments)  # type: ignore[arg-type]  # no lists
        return cls.of_spec(ObjectiveSpec(loss, job.input_field, job.input_scale), job.precision)

    @classmethod
    def of_spec(cls, spec: ObjectiveSpec, precision: str = "float32") -> Objective:
        """Return it, for a model in this precision.

        Raises:
            ModelError: its loss cannot be imported.
        """
        return cls(
            spec.input_field, spec.input_scale, make_code("loss", spec.loss, LOSSES), spec.loss.name, _DTYPES[precision]
        )

    def inputs(self, batch: Batch) -> torch.Tensor:
        """Return a batch as the model takes it: bytes scaled, whole numbers as they are, others in its precision."""
        values = torch.from_numpy(batch[self.input_field])
        if values.dtype == torch.uint8:
            return values.to(self.dtype).mul_(self.input_scale)
        return values.to(self.dtype) if values.is_floating_point() else values

    def loss_of(self, outputs: Any, batch: Batch) -> torch.Tensor:
        """Return the mean loss of the model's outputs over the records of a batch.

        Raises:
            ModelError: it is no scalar.
            BaseException: the loss itself raised.
        """
        fields = {name: torch.from_numpy(column) for name, column in batch.items()}
        found = self.loss(outputs, fields)
        if not isinstance(found, torch.Tensor) or found.ndim:
            told = f"shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
            raise ModelError(f"loss {self.loss_name!r} returned {told}; return a scalar, the mean over the records")
        return found
