"""What training minimises: what batches are made of records, which fields the model takes, and the loss of its outputs.

A loss is a function of the model's outputs and of the batch, field -> (records, ...) tensor, that returns a scalar: the
mean over the records, so that parts of a batch, and drives' batches, can be added up by how many records they have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from firmware_agent.common.augments.built_in_augments import AUGMENTS
from firmware_agent.common.collates.built_in_collates import COLLATES
from firmware_agent.common.errors import ModelError
from firmware_agent.common.frames.session_frames import Code, Job
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
        input_fields: that the model takes, each an argument by position.
        input_scale: what bytes of them are multiplied by.
        augment: what changes records at random in training, one after the other.
        collate: makes the batch that model and loss take; None: they take records as stored.
    """

    loss: ShippedCode
    input_fields: tuple[str, ...]
    input_scale: float
    augment: tuple[ShippedCode, ...] = ()
    collate: ShippedCode | None = None


class BatchStep:
    """A function of a batch of tensors that returns another one: an augmentation, or a collate function.

    Attributes:
        told: what messages call it.
        draws: whether it is an augmentation, which is given a generator.
    """

    def __init__(self, kind: str, code: ShippedCode) -> None:
        """Load it; `kind` is the job's key.

        Raises:
            ModelError: it cannot be imported or made.
        """
        self.told, self.draws = f"{kind} {code.name!r}", kind == "augment"
        self._call = make_code(kind, code, AUGMENTS if self.draws else COLLATES)

    def run(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Return the batch that it makes.

        Raises:
            ModelError: it is no mapping of names to tensors of all records; or, of an augmentation, has other fields,
                shapes or dtypes than before.
            BaseException: what it raised.
        """
        fields = {name: torch.from_numpy(column) for name, column in batch.items()}
        given, count = _forms(fields), len(next(iter(batch.values())))
        found = self._call(fields, *[generator] * self.draws)
        whole = isinstance(found, Mapping) and all(
            isinstance(each, torch.Tensor) and each.shape[:1] == (count,) for each in found.values()
        )
        if not whole or (self.draws and _forms(found) != given):
            wanted = "the same fields, shapes and dtypes" if self.draws else "tensors of all records, in their order"
            raise ModelError(f"{self.told}: returned {_forms(found)}, of {given}; return a mapping with {wanted}")
        return {str(name): values.detach().numpy() for name, values in found.items()}


def _forms(found: Any) -> str:
    """Return names, dtypes and shapes of a mapping of tensors; of anything else what it is."""
    return (
        ", ".join(
            f"{name} {getattr(each, 'dtype', type(each).__name__)}{list(getattr(each, 'shape', ()))}"
            for name, each in sorted(found.items())
        ).replace("torch.", "")
        if isinstance(found, Mapping)
        else type(found).__name__
    )


@dataclass(frozen=True)
class Objective:
    """What a model takes and what is minimised.

    Attributes:
        input_fields, input_scale: as in its spec.
        loss: returns the mean loss.
        loss_name: for messages.
        dtype: of the model's parameters.
        steps: what makes batches of records, in this order: augmentations, then the collate function.
    """

    input_fields: tuple[str, ...]
    input_scale: float
    loss: Loss
    loss_name: str
    dtype: torch.dtype = torch.float32
    steps: tuple[BatchStep, ...] = ()

    @classmethod
    def of_job(cls, job: Job) -> Objective:
        """Return what a drive's job says.

        Raises:
            ModelError: code of it cannot be imported.
        """
        spec = ObjectiveSpec(
            *(_shipped(job.loss), tuple(job.input_fields), job.input_scale, tuple(map(_shipped, job.augment))),
            None if job.collate is None else _shipped(job.collate),
        )
        return cls.of_spec(spec, job.precision)

    @classmethod
    def of_spec(cls, spec: ObjectiveSpec, precision: str = "float32") -> Objective:
        """Return it, for a model in this precision.

        Raises:
            ModelError: code of it cannot be imported.
        """
        named = [*(("augment", each) for each in spec.augment), ("collate", spec.collate)]
        return cls(
            *(spec.input_fields, spec.input_scale, make_code("loss", spec.loss, LOSSES), spec.loss.name),
            *(_DTYPES[precision], tuple(BatchStep(kind, code) for kind, code in named if code is not None)),
        )

    def prepare(self, records: Batch, training: bool = True) -> Batch:
        """Return the batch that model and loss take of records; for training they are augmented.

        Augmentations draw from torch's own generator, which is seeded anew in each round or step.
        """
        for step in self.steps:
            if training or not step.draws:
                records = step.run(records, torch.default_generator)
        return records

    def inputs(self, batch: Mapping[str, Array | torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the model's arguments: bytes scaled, whole numbers as they are, others in its precision.

        What they are computed from may be tensors, which keep their gradients.

        Raises:
            ModelError: the batch has no such field.
        """
        if missing := [name for name in self.input_fields if name not in batch]:
            raise ModelError(
                f"data.input: batches have no field {missing[0]!r}, but {', '.join(batch)}; name some of these"
            )
        values = [torch.as_tensor(batch[name]) for name in self.input_fields]
        return tuple(
            each.to(self.dtype).mul_(self.input_scale)
            if each.dtype == torch.uint8
            else (each.to(self.dtype) if each.is_floating_point() else each)
            for each in values
        )

    def fields(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return what loss and metrics take of a batch: whole numbers as they are, others in the model's precision."""
        return {
            name: each.to(self.dtype) if each.is_floating_point() else each
            for name, each in zip(batch, map(torch.from_numpy, batch.values()), strict=True)
        }

    def whole_fields(self, batch: Batch) -> dict[str, Array]:
        """Return those of the model's arguments that stay whole numbers, such as tokens."""
        return {
            name: batch[name]
            for name in self.input_fields
            if name in batch and batch[name].size and batch[name].dtype.kind in "iu" and batch[name].dtype != "uint8"
        }

    def loss_of(self, outputs: Any, batch: Batch) -> torch.Tensor:
        """Return the mean loss of the model's outputs over the records of a batch.

        Raises:
            ModelError: it is no scalar.
            BaseException: the loss itself raised.
        """
        found = self.loss(outputs, self.fields(batch))
        if not isinstance(found, torch.Tensor) or found.ndim:
            told = f"shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
            raise ModelError(f"loss {self.loss_name!r} returned {told}; return a scalar, the mean over the records")
        return found


def describe_range(fields: Batch, where: str, model: str) -> str:
    """Return in words from where to where these fields' whole numbers go, which a model does not take."""
    told = " and ".join(f"{name} goes from {column.min()} to {column.max()}" for name, column in fields.items())
    most = max(int(column.max()) for column in fields.values())
    return (
        f"data: {told} ({where}): an embedding needs {most + 1} rows and no value below 0; {model} does not take them"
    )


def _shipped(code: Code) -> ShippedCode:
    return ShippedCode(code.name, code.source, code.arguments)  # type: ignore[arg-type]  # no lists
