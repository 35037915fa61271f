"""The host's own copy of the model: where weights start, and how good they are on held-out records."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import nn
from torch.nn import functional

from firmware_agent.common.errors import CsdError, ModelError, ModelFailed, user_errors
from firmware_agent.common.first_use import forward_order
from firmware_agent.common.folded_traceback import describe_error
from firmware_agent.common.layer_costs import LayerWork, trace_layers
from firmware_agent.common.models import ModelSpec, build_model
from firmware_agent.common.slices import Array
from firmware_agent.common.split.cutting import Cut, cut_model
from firmware_agent.common.sync_batch_norm import StatisticsExchange, Values, synchronise
from firmware_agent.common.weights import buffer_names, load_arrays, state_arrays, tied_names, trained_names
from host.core.datasets import Dataset

_BATCH = 512


@dataclass(frozen=True)
class Structure:
    """What a model's state consists of.

    Attributes:
        trained: names of parameters that have a gradient, in the model's order.
        buffers: names of what is no parameter, such as running statistics.
        tied: further name of a parameter -> its first one.
        order: names in the order in which a forward pass first uses them, tied ones by their first name; empty if it is
            not known.
    """

    trained: tuple[str, ...]
    buffers: tuple[str, ...]
    tied: Mapping[str, str]
    order: tuple[str, ...] = ()


class NormSum(NamedTuple):
    """One sum over all participants in a step with synchronised batch normalisation.

    Attributes:
        values: how many numbers are added up.
        record_count: how many places a record has, of a sum whose first number counts them; 0 of any other.
    """

    values: int
    record_count: float


class WeightsJudge(Protocol):
    """Where weights start, and how good they are."""

    def initial_weights(self) -> dict[str, Array]:
        """Return a copy of the weights and buffers that training starts from."""

    def structure(self) -> Structure:
        """Return what the weights consist of."""

    def evaluate(self, weights: Mapping[str, Array]) -> tuple[float, float]:
        """Return (accuracy 0 to 1, loss) of `weights`."""


class Evaluator:
    """Builds the model once and evaluates weights on the held-out part of a data set."""

    def __init__(self, spec: ModelSpec, dataset: Dataset, seed: int) -> None:
        """Build the model with initial weights from `seed`, and try it on one held-out record.

        Raises:
            ModelError: it cannot be built, or does not take this data set's images.
        """
        torch.manual_seed(seed)
        self._spec, self._model = spec, build_model(spec).eval()
        self._images = torch.from_numpy(dataset.test_images).float() * dataset.image_scale
        self._labels = torch.from_numpy(dataset.test_labels)
        self._check(spec, dataset)

    def initial_weights(self) -> dict[str, Array]:
        """Return a copy of the model's present weights and buffers."""
        return {name: array.copy() for name, array in state_arrays(self._model).items()}

    def structure(self) -> Structure:
        """Return what the weights consist of.

        Raises:
            ModelFailed: the model raised.
        """
        model = self._model
        with self._guarded("a forward pass"):
            order = tuple(forward_order(model, self._images[:1]))
        return Structure(tuple(trained_names(model)), tuple(buffer_names(model)), tied_names(model), order)

    def layers(self) -> tuple[LayerWork, ...]:
        """Return what the model's layers cost for one record, in forward order."""
        return trace_layers(self._model, self._images[:1])

    def cut(self, layer: str, precision: str) -> Cut:
        """Return a further model of the same kind, for training in this precision, cut before `layer`.

        Raises:
            ConfigurationError: the model has no such layer, or cannot be cut there.
        """
        dtype = getattr(torch, precision)
        return cut_model(build_model(self._spec).train().to(dtype), self._images[:1].to(dtype), layer)

    def batch_norm_sums(self, precision: str, cut_layer: str | None = None) -> tuple[NormSum, ...]:
        """Return the sums that a step exchanges in a drive with synchronised batch normalisation, in their order.

        A step is taken with two records, as a drive takes it; of a model that is cut with the drive's part alone.

        Raises:
            ModelError: a layer cannot be normalised over all participants.
            ModelFailed: the model raised.
        """
        dtype = getattr(torch, precision)
        model = build_model(self._spec).train().to(dtype) if cut_layer is None else self.cut(cut_layer, precision).front
        with self._guarded("a step with synchronised batch normalisation"):
            return trace_norm_sums(model, self._images[:1].to(dtype))

    def evaluate(self, weights: Mapping[str, Array]) -> tuple[float, float]:
        """Return (accuracy 0 to 1, mean cross-entropy) of `weights` on the held-out records.

        Raises:
            ModelFailed: the model raised.
        """
        load_arrays(self._model, weights)
        correct, loss = 0, 0.0
        for start in range(0, len(self._labels), _BATCH):
            right, lost = self._judge(self._images[start : start + _BATCH], self._labels[start : start + _BATCH])
            correct, loss = correct + right, loss + lost
        return correct / len(self._labels), loss / len(self._labels)

    def _judge(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[int, float]:
        with self._guarded("evaluation"), torch.inference_mode():
            logits = self._model(images)
            loss = functional.cross_entropy(logits, labels, reduction="sum")
            return int((logits.argmax(1) == labels).sum()), float(loss)

    @contextlib.contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """Have an error of the user's model name the model."""
        try:
            yield
        except CsdError:
            raise
        except user_errors() as error:  # it may raise anything, and must not end the program
            told = f"model {self._spec.name!r}: {what} on the host failed: {describe_error(error)}"
            raise ModelFailed(told) from error

    def _check(self, spec: ModelSpec, dataset: Dataset) -> None:
        shape, classes = tuple(self._images.shape[1:]), int(self._labels.max()) + 1
        try:
            with torch.inference_mode():
                logits = self._model(self._images[:1])
        except Exception as error:  # the user's model may raise anything
            raise ModelError(f"model {spec.name!r} does not take {dataset.name}'s images {shape}: {error}") from error
        if logits.ndim != 2 or logits.shape[1] < classes:
            raise ModelError(
                f"model {spec.name!r} gives {tuple(logits.shape)}, {dataset.name} needs (1, {classes}) logits"
            )


def trace_norm_sums(model: nn.Module, image: torch.Tensor) -> tuple[NormSum, ...]:
    """Return the sums that a step of `model` exchanges, which is changed by that.

    Args:
        model: in training mode; for a drive's part of one that is cut it returns a tuple.
        image: (1, channels, height, width), a record as the model takes it.

    Raises:
        ModelError: a layer cannot be normalised over all participants.
    """
    meeting, seen, records, backward = StatisticsExchange(), list[NormSum](), 2, False

    def note(values: Values) -> Values:
        seen.append(NormSum(len(values), 0.0 if backward else float(values[0]) / records))
        return values

    meeting.reduce = note
    found = synchronise(model, meeting)(image.repeat(records, *[1] * (image.ndim - 1)))
    outputs = [each for each in (found if isinstance(found, tuple) else (found,)) if each.requires_grad]
    backward = True
    if outputs:
        torch.autograd.backward(outputs, [torch.ones_like(each) for each in outputs])
    return tuple(seen)
