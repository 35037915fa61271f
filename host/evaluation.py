"""The host's own copy of the model: where weights start, and how good they are on held-out records."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional

from firmware_agent.cutting import Cut, cut_model
from firmware_agent.errors import CsdError, ModelError, ModelFailed
from firmware_agent.exchange import Array
from firmware_agent.first_use import forward_order
from firmware_agent.folded_traceback import describe_error
from firmware_agent.layer_costs import LayerWork, trace_layers
from firmware_agent.models import ModelSpec, build_model
from firmware_agent.weights import buffer_names, load_arrays, state_arrays, tied_names, trained_names
from host.datasets import Dataset

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


class Judge(Protocol):
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
        except (Exception, SystemExit) as error:  # it may raise anything, and must not end the program
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
