"""One round as a client program sees it: records, loss, optimiser and stopwatch of the drive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from firmware_agent.common.errors import ModelError
from firmware_agent.common.losses.objective import Batch, Objective
from firmware_agent.common.slices import Array

TensorBatch = Mapping[str, torch.Tensor]
"""Field -> (records, ...) values."""
Setting = int | float | str | bool
EXCHANGED = "exchange/"
"""How tensors are called on the wire that a client program exchanges within a round."""
MOST_EXCHANGES = 1000
"""Within a round."""

_PHASES = ("forward", "backward", "update")
# What no phase is named for: most of it is arithmetic on weights.
_UNMARKED = "update"


class Optimizer(Protocol):
    """What `ClientRound.optimizer` returns."""

    def zero_grad(self) -> None:
        """Drop all gradients."""

    def step(self) -> Any:
        """Update the parameters by their gradients."""


class PhaseWatch(Protocol):
    """What charges seconds to phases; see `firmware_agent.clock.Stopwatch`."""

    def mark(self) -> None:
        """Forget the time up to now."""

    def lap(self, phase: str) -> None:
        """Charge the time since the last mark or lap."""


class NoWatch:
    """Charges nothing: of a round that nobody times."""

    def mark(self) -> None:
        """Do nothing."""

    def lap(self, phase: str) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class ClientRecords:
    """The drive's records, as a round takes them.

    Attributes:
        take: returns the records at these places in the shard.
        order: returns (samples,) the places of all records in the order of the round's next pass.
        samples: how many there are.
        resident: whether they lie in memory; else reading them is no device time of the program's.
    """

    take: Callable[[npt.NDArray[np.integer]], Batch]
    order: Callable[[], npt.NDArray[np.integer]]
    samples: int
    resident: bool = True


class Loader:
    """Batches of a round, field -> (records, ...) tensor: `epochs` passes over the shard, each in an order of its own.

    Attributes:
        epochs: passes.
        batch_size: records of a batch; the last one of a pass may have fewer.
    """

    def __init__(self, fetch: Callable[[int, int], Iterator[TensorBatch]], epochs: int, batch_size: int) -> None:
        """Iterate over what `fetch` yields of so many passes at this batch size."""
        self._fetch, self.epochs, self.batch_size = fetch, epochs, batch_size

    def __iter__(self) -> Iterator[TensorBatch]:
        return self._fetch(self.epochs, self.batch_size)

    def passes(self, epochs: int = 1, batch_size: int | None = None) -> Loader:
        """Return another loader of the same records."""
        return Loader(self._fetch, epochs, batch_size or self.batch_size)


class _Phases:
    """The phase that is being charged, by turns: what is not named is `_UNMARKED`."""

    def __init__(self, stopwatch: PhaseWatch) -> None:
        self._stopwatch, self._now = stopwatch, _UNMARKED

    @contextmanager
    def named(self, phase: str) -> Iterator[None]:
        before = self._now
        self.lap()
        self._now = phase
        try:
            yield
        finally:
            self.lap()
            self._now = before

    def lap(self) -> None:
        self._stopwatch.lap(self._now)

    def mark(self) -> None:
        self._stopwatch.mark()


class _MeanLoss:
    """Mean over the records of batches."""

    def __init__(self) -> None:
        self._sum, self._samples = torch.zeros((), dtype=torch.float64), 0

    def add(self, mean: torch.Tensor, samples: int) -> None:
        self._sum += mean.detach() * samples
        self._samples += samples

    @property
    def value(self) -> float:
        return float(self._sum) / max(1, self._samples)


class ClientRound:
    """What a client program gets as `csd`.

    Seconds that it names no phase for are charged to ``update``; those of `loss` and `fit` are charged by themselves.

    Attributes:
        number: the round, from 1.
        model: with the weights that the host sent, in training mode.
        loader: the round's batches.
        samples, steps: records and batches taken so far.
        read_bytes: of those records.
        ask: exchanges arrays with the host.
    """

    def __init__(
        self,
        number: int,
        model: nn.Module,
        objective: Objective,
        records: ClientRecords,
        passes: tuple[int, int],
        make_optimizer: Callable[[], Optimizer],
        stopwatch: PhaseWatch,
    ) -> None:
        """Begin a round.

        Args:
            number: its number.
            model: to train.
            objective: what the model takes, and the loss.
            records: to train on.
            passes: epochs and batch size of `loader`.
            make_optimizer: returns the job's, at its beginning.
            stopwatch: charges the phases.
        """
        self.number, self.model, self.loader = number, model, Loader(self._fetch, *passes)
        self.samples = self.steps = self.read_bytes = 0
        self.ask: Callable[[Mapping[str, Array]], Mapping[str, Array]] = _nobody
        self._objective, self._records, self._make_optimizer = objective, records, make_optimizer
        self._phases, self._mean = _Phases(stopwatch), _MeanLoss()

    @property
    def mean_loss(self) -> float:
        """Mean over the records that `loss` was asked for; 0 before that."""
        return self._mean.value

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Charge what is done in this context to a phase: ``forward``, ``backward`` or ``update``.

        Raises:
            ModelError: there is no such phase.
        """
        if name not in _PHASES:
            raise ModelError(f"csd.phase: {name!r} is no phase; name one of {', '.join(_PHASES)}")
        with self._phases.named(name):
            yield

    def inputs(self, batch: TensorBatch) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Return what the model takes of a batch: its argument, or all of them if there are several."""
        return found if len(found := self._objective.inputs(batch)) > 1 else found[0]

    def loss(self, batch: TensorBatch) -> torch.Tensor:
        """Return the job's loss of the model on a batch, a scalar; charged to ``forward``.

        Gradients reach the batch's tensors through the model; to the loss itself they are constants.
        """
        with self.phase("forward"):
            stored = {name: column.detach().numpy() for name, column in batch.items()}
            loss = self._objective.loss_of(self.model(*self._objective.inputs(batch)), stored)
            self._mean.add(loss, len(next(iter(stored.values()))))
        return loss

    def optimizer(self) -> Optimizer:
        """Return the job's optimiser of the model's parameters, at its beginning."""
        return self._make_optimizer()

    def fit(self, before_update: Callable[[], object] | None = None) -> None:
        """Train as without a client program: the loader's batches, the job's loss and optimiser.

        Args:
            before_update: called in each step when the gradients are there; it may change them.
        """
        optimizer = self.optimizer()
        for batch in self.loader:
            loss = self.loss(batch)
            optimizer.zero_grad()
            with self.phase("backward"):
                loss.backward()  # type: ignore[no-untyped-call]
            if before_update is not None:
                before_update()
            with self.phase("update"):
                optimizer.step()

    def exchange(self, tensors: Mapping[str, object]) -> dict[str, torch.Tensor]:
        """Return what the strategy's `exchange` answers to what all drives of the round give; it waits for them.

        Waiting is no device time. Each exchange of a program gives the same names, shapes and dtypes.

        Raises:
            ModelError: these are no tensors or finite numbers, others than in the trial on the host, or nobody answers.
        """
        arrays = {str(name): to_array("csd.exchange", name, value) for name, value in tensors.items()}
        if bad := [name for name, a in arrays.items() if a.dtype.kind == "f" and not np.isfinite(a).all()]:
            raise ModelError(f"csd.exchange: {bad[0]} has values that are no finite numbers; lower the learning rate")
        self._phases.lap()
        answer = self.ask(arrays)
        self._phases.mark()
        return {name: torch.from_numpy(np.array(array)) for name, array in answer.items()}

    def _fetch(self, epochs: int, batch_size: int) -> Iterator[TensorBatch]:
        for _ in range(epochs):
            order = self._records.order()
            yield from (self._take(order[start : start + batch_size]) for start in range(0, len(order), batch_size))

    def _take(self, places: npt.NDArray[np.integer]) -> TensorBatch:
        if not self._records.resident:
            self._phases.lap()
        batch = self._records.take(places)
        if not self._records.resident:
            self._phases.mark()
        self.samples, self.steps = self.samples + len(places), self.steps + 1
        self.read_bytes += sum(column.nbytes for column in batch.values())
        if self._objective.steps:
            with self.phase("forward"):
                batch = self._objective.prepare(batch)
        return {name: torch.from_numpy(column) for name, column in batch.items()}


def to_array(where: str, name: object, value: object) -> Array:
    """Return a tensor or number of a client program as an array that can cross the wire.

    Raises:
        ModelError: it cannot; the message begins with `where`.
    """
    try:
        array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ModelError(f"{where}: {name} cannot cross the wire ({error}); use float32") from error
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        told = f"{name} is {type(value).__name__} of {array.dtype}"
        raise ModelError(f"{where}: {told}; give tensors and numbers")
    return np.ascontiguousarray(array).reshape(array.shape)


def _nobody(_: object) -> NoReturn:
    raise ModelError(
        "csd.exchange: nobody answers: the strategy has no exchange(round, number, tensors), or nothing was given in "
        "the trial on the host"
    )
