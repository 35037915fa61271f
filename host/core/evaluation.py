"""The host's own copy of the model: where weights start, and how good they are on held-out records."""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from firmware_agent.common.datafiles.record_set import IMAGE, labels_of
from firmware_agent.common.errors import CsdError, ModelError, ModelFailed, user_errors
from firmware_agent.common.first_use import forward_order
from firmware_agent.common.folded_traceback import describe_error, user_line
from firmware_agent.common.layer_costs import LayerWork, trace_layers
from firmware_agent.common.losses.objective import Batch, Objective, ObjectiveSpec, describe_range
from firmware_agent.common.models import build_model
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.slices import Array
from firmware_agent.common.split.cutting import Cut, cut_model
from firmware_agent.common.sync_batch_norm import StatisticsExchange, Values, synchronise
from firmware_agent.common.weights import buffer_names, load_arrays, state_arrays, tied_names, trained_names
from host.core.datasets import Dataset
from host.core.learning.default_objective import default_objective
from host.core.learning.initial_weights import AS_BUILT, ModelStart, read_initial_weights
from host.core.learning.judgement import HeldOutMetric, Judgement
from host.core.model_facts import ModelFacts, pass_facts

_BATCH = 512
# Records of which a loss of the user's own is tried, so that not all are of one class, or without one.
_TRIED = 16
NO_METRICS: Mapping[str, Callable[[], HeldOutMetric]] = {}


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

    def frozen(self, names: Iterable[str]) -> list[str]:
        """Return those of a model's `names` that are parameters and not trained, tied ones included."""
        return [name for name in names if self.tied.get(name, name) not in (*self.trained, *self.buffers)]


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

    def evaluate(self, weights: Mapping[str, Array]) -> Judgement:
        """Return what `weights` are worth."""


class Evaluator:
    """Builds the model once and evaluates weights on the held-out part of a data set.

    Attributes:
        weights_sha256: of the file of the initial weights; empty if there is none.
    """

    def __init__(
        self,
        spec: ShippedCode,
        dataset: Dataset,
        seed: int,
        objective: ObjectiveSpec | None = None,
        metrics: Mapping[str, Callable[[], HeldOutMetric]] = NO_METRICS,
        start: ModelStart = AS_BUILT,
    ) -> None:
        """Build the model with initial weights from `seed` or a file, and try it, its loss and metrics on some records.

        Args:
            spec: the model.
            dataset: that it is trained on.
            seed: of its weights.
            objective: that it is trained for; None for what suits the data.
            metrics: name -> what makes a further figure of a judgement.
            start: the file, which parameters are not trained, and in which precision the others are.

        Raises:
            ModelError: it cannot be built, or does not take the records, or loss or a metric not its outputs; or the
                loss cannot be trained with.
        """
        torch.manual_seed(seed)
        self._spec, self._start = spec, start
        self._model = build_model(self._spec, self._start.freeze).eval()
        self.weights_sha256 = "" if start.weights is None else read_initial_weights(Path(start.weights), self._model)
        self._initial = {name: array.copy() for name, array in state_arrays(self._model).items()}
        self._held_out = {name: np.array(column) for name, column in dataset.held_out.items()}
        self._labels = labels_of(self._held_out)
        self._objective, self._metrics = Objective.of_spec(objective or default_objective(dataset)), metrics
        self._records = self._try_records(dataset)
        self._classifies = self._check(spec, dataset)

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of what judgements have beside the loss."""
        return (*(("accuracy",) if self._classifies else ()), *self._metrics)

    def initial_weights(self) -> dict[str, Array]:
        """Return a copy of the weights and buffers that the model began with."""
        return {name: array.copy() for name, array in self._initial.items()}

    def structure(self) -> Structure:
        """Return what the weights consist of.

        Raises:
            ModelFailed: the model raised.
        """
        model = self._model
        with self._guarded("a forward pass"):
            order = tuple(forward_order(model, *self._records))
        return Structure(tuple(trained_names(model)), tuple(buffer_names(model)), tied_names(model), order)

    def facts(self) -> ModelFacts:
        """Return the model's size."""
        return pass_facts(self._model, *self._records)[1]

    def layers(self) -> tuple[LayerWork, ...]:
        """Return what the model's layers cost for one record, in forward order."""
        return trace_layers(self._model, *self._records)

    def cut(self, layer: str, precision: str) -> Cut:
        """Return a further model of the same kind, for training in this precision, cut before `layer`.

        Raises:
            ConfigurationError: the model has no such layer, or cannot be cut there.
        """
        dtype = getattr(torch, precision)
        return cut_model(
            build_model(self._spec, self._start.freeze).train().to(dtype), self._records[0].to(dtype), layer
        )

    def batch_norm_sums(self, precision: str, cut_layer: str | None = None) -> tuple[NormSum, ...]:
        """Return the sums that a step exchanges in a drive with synchronised batch normalisation, in their order.

        A step is taken with two records, as a drive takes it; of a model that is cut with the drive's part alone.

        Raises:
            ModelError: a layer cannot be normalised over all participants.
            ModelFailed: the model raised.
        """
        dtype = getattr(torch, precision)
        model = (
            build_model(self._spec, self._start.freeze).train().to(dtype)
            if cut_layer is None
            else self.cut(cut_layer, precision).front
        )
        with self._guarded("a step with synchronised batch normalisation"):
            return trace_norm_sums(model, *(e.to(dtype) if e.is_floating_point() else e for e in self._records))

    def evaluate(self, weights: Mapping[str, Array]) -> Judgement:
        """Return what `weights` are worth on the held-out records.

        The accuracy is NaN where records have no classes, or the model gives no logit for each.

        Raises:
            ModelFailed: the model, the loss or a metric raised.
        """
        load_arrays(self._model, weights)
        count = len(next(iter(self._held_out.values())))
        correct, loss = 0.0, 0.0
        with self._guarded("evaluation"):
            metrics = {name: make() for name, make in self._metrics.items()}
            for start in range(0, count, _BATCH):
                right, lost = self._judge(slice(start, start + _BATCH), metrics)
                correct, loss = correct + right, loss + lost * len(range(start, min(start + _BATCH, count)))
            figures: dict[str, float] = {}
            for name, metric in metrics.items():
                with self._guarded("its figure", name):
                    figures[name] = float(metric.compute())
        return Judgement(correct / count, loss / count, figures)

    def _judge(self, part: slice, metrics: Mapping[str, HeldOutMetric]) -> tuple[float, float]:
        """Return how many held-out records are classified rightly, NaN if they have no classes, and the mean loss."""
        batch = self._take(part)
        with torch.inference_mode():
            outputs = self._model(*self._objective.inputs(batch))
            loss = float(self._objective.loss_of(outputs, batch))
            for name, metric in metrics.items():
                with self._guarded("evaluation", name):
                    metric.update(outputs, self._objective.fields(batch))
            if self._labels is None or not self._classifies:
                return math.nan, loss
            return int((outputs.argmax(1) == torch.from_numpy(self._labels[part])).sum()), loss

    def _take(self, part: slice) -> Batch:
        """Return held-out records as model, loss and metrics take them."""
        return self._objective.prepare(
            {name: np.array(column[part]) for name, column in self._held_out.items()}, training=False
        )

    def _try_records(self, dataset: Dataset) -> tuple[torch.Tensor, ...]:
        """Return a held-out record as the model takes it; of the shortest and the longest a batch is tried."""
        order = np.argsort(next(iter(dataset.lengths.values()), np.arange(len(dataset))))
        batch: Batch = {name: column[order[[0, -1]]] for name, column in dataset.fields.items()}
        for step in self._objective.steps:
            with _naming(f"{step.told}: failed in a trial on two records"):
                batch = step.run(batch, torch.Generator())
        with _naming("collate: failed in a trial on a held-out record"):
            batch = self._take(slice(1))
        return self._objective.inputs(batch)

    def _guarded(self, what: str, metric: str = "") -> contextlib.AbstractContextManager[None]:
        """Return the context in which an error of the user's model, or of a metric, names it."""
        told = f"metric {metric!r}" if metric else f"model {self._spec.name!r}"
        failed = partial(ModelFailed, code=f"metric {metric}" if metric else "model")
        return _naming(f"{told}: {what} on the host failed", failed)

    def _check(self, spec: ShippedCode, dataset: Dataset) -> bool:
        """Return whether the model gives a logit for each class; it, the loss and all metrics are tried."""
        batch = self._take(slice(2))
        try:
            with torch.inference_mode():
                outputs = self._model(*self._records)
                both = self._model(*self._objective.inputs(batch))
        except Exception as error:  # the user's model may raise anything
            if isinstance(error, IndexError):
                self._try_loss(self._held_out, "held-out records")  # which says more
            taken = " and ".join(
                f"{'images' if field == IMAGE else field} {tuple(values.shape[1:])}"
                for field, values in zip(self._objective.input_fields, self._records, strict=True)
            )
            raise ModelError(f"model {spec.name!r} does not take {dataset.name}'s {taken}: {error}") from error
        shape = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else ()
        if self._objective.loss_name == "cross_entropy" and (len(shape) < 2 or shape[1] < dataset.classes):
            raise ModelError(
                f"model {spec.name!r} gives {shape or type(outputs).__name__}, {dataset.name} needs (1, "
                f"{dataset.classes}) logits"
            )
        self._try_loss(dataset.fields, "records")
        self._try_loss(self._held_out, "held-out records")
        with torch.inference_mode():
            for name, make in self._metrics.items():
                with _naming(f"metric {name!r} does not take what model {spec.name!r} gives"):
                    metric = make()
                    metric.update(both, self._objective.fields(batch))
                    float(metric.compute())
        return self._labels is not None and len(shape) == 2 and shape[1] >= max(2, dataset.classes)

    def _try_loss(self, fields: Batch, kind: str) -> None:
        """Have model and loss take some records, among them those with the least and the largest whole numbers.

        A loss of the user's own is tried as drives use it, with its gradient and in the job's precision.

        Raises:
            ModelError: they do not take them, or such a loss has no finite value or no gradient.
        """
        precision, name = self._start.precision or "float32", f"model {self._spec.name!r}"
        own, model = replace(self._objective, dtype=getattr(torch, precision)), self._model
        if own.dtype != self._objective.dtype:
            model = build_model(self._spec, self._start.freeze).eval().to(own.dtype)
        trained_by, whole = ":" in own.loss_name and self._start.precision is not None, own.whole_fields(fields)
        ends = [int(at) // column[0].size for column in whole.values() for at in (column.argmin(), column.argmax())]
        rows = [*range(min(_TRIED if trained_by else 2, len(next(iter(fields.values()))))), *ends]
        with _naming(f"collate: failed in a trial on {kind} {', '.join(map(str, rows))}"):
            batch = own.prepare({field: np.array(column[rows]) for field, column in fields.items()}, training=False)
        with _naming(
            describe_range(whole, f"{kind} {str(ends)[1:-1]}", name) if whole else f"{name} does not take {kind}"
        ):
            outputs = model(*own.inputs(batch))
        with _naming(f"loss {own.loss_name!r} does not take what {name} gives, tried in {precision} with gradients"):
            loss = own.loss_of(outputs, batch)
            if trained_by and getattr(outputs, "requires_grad", True):
                if not (loss.isfinite() and loss.requires_grad):
                    raise ModelError(
                        f"loss {own.loss_name!r} has no gradient; make it of the outputs by torch, without detach"
                        if loss.isfinite()
                        else f"loss {own.loss_name!r} is {loss.item()} before anything is trained; is there a "
                        "logarithm of 0, a division by 0, or NaN in the data?"
                    )
                loss.backward()  # type: ignore[no-untyped-call]
        model.zero_grad()


@contextlib.contextmanager
def _naming(what: str, kind: Callable[[str], CsdError] = ModelError) -> Iterator[None]:
    """Have an error of the user's code say what failed, and where in the code."""
    try:
        yield
    except CsdError:
        raise
    except user_errors() as error:  # it may raise anything, and must not end the program
        raise kind(f"{what}: {describe_error(error)}{user_line(traceback.extract_tb(error.__traceback__))}") from error


def trace_norm_sums(model: nn.Module, *inputs: torch.Tensor) -> tuple[NormSum, ...]:
    """Return the sums that a step of `model` exchanges, which is changed by that.

    Args:
        model: in training mode; for a drive's part of one that is cut it returns a tuple.
        inputs: (1, ...), a record as the model takes it.

    Raises:
        ModelError: a layer cannot be normalised over all participants.
    """
    meeting, seen, records, backward = StatisticsExchange(), list[NormSum](), 2, False

    def note(values: Values) -> Values:
        seen.append(NormSum(len(values), 0.0 if backward else float(values[0]) / records))
        return values

    meeting.reduce = note
    found = synchronise(model, meeting)(*(each.repeat(records, *[1] * (each.ndim - 1)) for each in inputs))
    outputs = [each for each in (found if isinstance(found, tuple) else (found,)) if each.requires_grad]
    backward = True
    if outputs:
        torch.autograd.backward(outputs, [torch.ones_like(each) for each in outputs])
    return tuple(seen)
