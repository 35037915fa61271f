"""The host's part of a model that is cut: computed for all drives' records at once, what is each drive's own apart.

Batch normalisation takes the statistics of each drive's records alone, as the whole model in the drive would, and each
drive's running statistics go their own way within a step; dropout draws from a generator of each drive's. All else
computes record by record: all drives' records go through it together.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from firmware_agent.crossing import has_gradient, step_seed
from firmware_agent.cutting import Cut
from firmware_agent.errors import ConfigurationError
from firmware_agent.exchange import Array
from firmware_agent.first_use import evaluating
from firmware_agent.weights import buffer_names, trained_names
from host.aggregate import weighted_mean

# Functions of torch that draw, or mix records.
_DRAWING = {
    functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d, functional.alpha_dropout,
    functional.feature_alpha_dropout, functional.rrelu, torch.dropout, torch.rrelu,
}  # fmt: skip
_MIXING = {functional.batch_norm, torch.batch_norm}


@dataclass(frozen=True)
class Batch:
    """What one drive handed over of one part of a step.

    Attributes:
        device: the drive.
        values: the crossing tensors, (records, ...) each.
        labels: (records,) int64.
        random: the state of its generator behind the front; None if the front drew nothing.
    """

    device: str
    values: Sequence[Array]
    labels: Array
    random: Array | None = None


@dataclass(frozen=True)
class Back:
    """What one drive gets back: the mean loss over its records, and the gradients of its values, by place."""

    loss: float
    gradients: dict[str, Array]


@dataclass
class Own:
    """What is a drive's own within a step: its generator's state, and the running statistics by name."""

    random: torch.Tensor
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)


class Tail:
    """The host's part of one job's model; one instance per run.

    Attributes:
        point: where the model is cut.
        front: names of the drives' part of the state, in the order in which they have it.
        front_trained, front_buffers: which of them are parameters with a gradient, and buffers.
        trained, buffers: the same of the host's part; what no part uses is the host's.
        classes: how many it tells apart.
        layers: how many it has.
        state_bytes: of what is the host's.
        answers: whether the drives need the gradients of what they hand over: not for a front that is not trained.
        turn: held by whoever computes.
    """

    def __init__(
        self,
        cut: Cut,
        weights: Mapping[str, Array],
        trained: Sequence[str],
        tied: Mapping[str, str],
        batch_norm: str,
        seed: int,
        layers: int = 1,
    ) -> None:
        """Take over a model that is cut; its tail then computes with `weights`, in their memory.

        Args:
            cut: of a model in training mode, in the precision of the weights.
            weights: the whole model's parameters and buffers by name.
            trained: which of them have a gradient.
            tied: further name of a parameter -> its first one.
            batch_norm: see `host.sync.sections.SyncSection`.
            seed: the job's.
            layers: how many it has, for the record.

        Raises:
            ConfigurationError: the tail normalises in a way that cannot be kept apart, or a tied parameter has another
                name in its part.
        """
        self.point, self._weights = cut.point, weights
        self.front = tuple(cut.front.state_dict())
        self.front_trained = tuple(trained_names(cut.front))
        self.front_buffers = tuple(buffer_names(cut.front))
        self.layers = layers
        self.state_bytes = sum(a.nbytes for name, a in weights.items() if name not in {*self.front, *tied})
        self.trained = tuple(name for name in trained if name not in self.front)
        self.buffers = tuple(buffer_names(cut.tail))
        self._apart = batch_norm == "device"
        self._module = cut.tail
        _check(self._module, self._apart)
        if batch_norm == "frozen":
            for module in self._module.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        self._parameters = {
            tied.get(name, name): each for name, each in self._module.named_parameters(remove_duplicate=False)
        }
        for name, tensor in self._module.state_dict(keep_vars=True).items():
            tensor.data = torch.from_numpy(weights[tied.get(name, name)])
        self.classes = self._count_classes()
        self._seed, self.answers = seed, bool(self.front_trained)
        # One pass at a time: the gradients are the module's own.
        self.turn = threading.Lock()
        if odd := sorted(set(self.front_trained) - set(trained)):
            raise ConfigurationError(
                f"placement: {odd[0]} is tied to {tied.get(odd[0])}, which the part before the cut does not use; "
                "cut elsewhere"
            )

    def _count_classes(self) -> int:
        dtypes = [(each.shape, getattr(torch, each.dtype)) for each in self.point.crossing]
        with evaluating(self._module), torch.no_grad():
            outputs = self._module(*(torch.zeros(1, *shape, dtype=dtype) for shape, dtype in dtypes))
        return int(outputs.shape[1])

    def begin(self, step: int) -> TailPass:
        """Begin a step."""
        return TailPass(self, lambda device: self._fresh(step, device), None if self._apart else self._fresh(step, ""))

    def compute(self, batches: Sequence[Batch], own: Mapping[str, Own], joint: Own | None) -> list[Back]:
        """Return what goes back; the gradient of the sum of all records' losses is then in the parameters.

        Args:
            batches: one per device.
            own: what is each device's own.
            joint: has the running statistics of all together; None if those are each device's own too.
        """
        sizes = [len(batch.labels) for batch in batches]
        leaves = [self._leaves(batch) for batch in batches]
        inputs = [torch.cat(column) for column in zip(*leaves, strict=True)]
        grouped = _Grouped(self._module, sizes, [own[batch.device] for batch in batches], joint)
        with torch.random.fork_rng(devices=[]):
            outputs: torch.Tensor = grouped.run(*inputs)
        losses = [
            functional.cross_entropy(part, torch.from_numpy(batch.labels), reduction="sum")
            for part, batch in zip(torch.split(outputs, sizes), batches, strict=True)
        ]
        torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
        return [
            Back(loss.item() / size, self._gradients(values, size))
            for loss, size, values in zip(losses, sizes, leaves, strict=True)
        ]

    def take_gradients(self) -> dict[str, Array]:
        """Return the parameters' gradients, as sums over records, and drop them; zeros where no record came through."""
        gradients: dict[str, Array] = {}
        for name in self.trained:
            parameter = self._parameters.get(name)
            gradient = None if parameter is None else parameter.grad
            gradients[name] = np.zeros_like(self._weights[name]) if gradient is None else gradient.to_dense().numpy()
        for parameter in self._parameters.values():
            parameter.grad = None
        return gradients

    def _leaves(self, batch: Batch) -> list[torch.Tensor]:
        values = zip(self.point.crossing, batch.values, strict=True)
        return [torch.from_numpy(array).requires_grad_(has_gradient(each)) for each, array in values]

    def _fresh(self, step: int, device: str) -> Own:
        return Own(torch.Generator().manual_seed(step_seed(self._seed, device, step)).get_state())

    def _gradients(self, values: Sequence[torch.Tensor], records: int) -> dict[str, Array]:
        if not self.answers:
            return {}
        found = {}
        for place, value in enumerate(values):
            if value.requires_grad:
                gradient = torch.zeros_like(value) if value.grad is None else value.grad
                found[str(place)] = (gradient / records).numpy()
        return found


class TailPass:
    """One step of the host's part: batches go through it as they come together, and their gradients add up.

    Attributes:
        seconds: that it has computed for, of this machine's clock.
    """

    def __init__(self, tail: Tail, fresh: Callable[[str], Own], joint: Own | None) -> None:
        """Begin with nothing.

        Args:
            tail: computes.
            fresh: returns what is a device's own when the step begins.
            joint: see `Tail.compute`.
        """
        self._tail, self._fresh, self._joint = tail, fresh, joint
        self._own: dict[str, Own] = {}
        # Records of each device that went through, in the order in which devices first came.
        self._records: dict[str, int] = {}
        self._gradients: dict[str, Array] = {}
        self.seconds = 0.0

    @property
    def devices(self) -> list[str]:
        """Whose records went through."""
        return list(self._records)

    def compute(self, batches: Sequence[Batch]) -> list[Back]:
        """Return what goes back to each; a device that comes again goes on where it was."""
        for batch in batches:
            if batch.device not in self._own:
                self._own[batch.device] = self._fresh(batch.device)
            if batch.random is not None:
                self._own[batch.device].random = torch.from_numpy(batch.random)
        with self._tail.turn:
            begin = time.perf_counter()
            try:
                back = self._tail.compute(batches, self._own, self._joint)
            finally:
                gradients = self._tail.take_gradients()  # of a pass that failed they are dropped
        for name, gradient in gradients.items():
            self._gradients[name] = np.add(self._gradients[name], gradient) if name in self._gradients else gradient
        for batch in batches:
            self._records[batch.device] = self._records.get(batch.device, 0) + len(batch.labels)
        self.seconds += time.perf_counter() - begin
        return back

    def gradients(self) -> dict[str, Array]:
        """Return the gradients of the mean loss over all records that went through."""
        total = sum(self._records.values())
        return {name: gradient / np.asarray(total, gradient.dtype) for name, gradient in self._gradients.items()}

    def buffers(self) -> dict[str, Array]:
        """Return the running statistics: the mean of what each device leaves behind, or what all leave together."""
        if self._joint is not None:
            return {name: buffer.numpy() for name, buffer in self._joint.buffers.items()}
        names = {name for own in self._own.values() for name in own.buffers}
        if not names or not self._records:
            return {}
        parts = [
            (records, {name: self._own[device].buffers[name].numpy() for name in sorted(names)})
            for device, records in self._records.items()
        ]
        return weighted_mean(parts)


class _Grouped(fx.Interpreter):
    """Runs a tail; what is a drive's own, or draws, runs for each drive's records alone."""

    def __init__(self, module: nn.Module, sizes: Sequence[int], own: Sequence[Own], joint: Own | None) -> None:
        super().__init__(module)
        self._sizes, self._own, self._joint = list(sizes), own, joint

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module = self.fetch_attr(str(target))
        compute = functools.partial(super().call_module, target)
        norms = {name: each for name, each in module.named_modules(prefix=str(target)) if isinstance(each, _BatchNorm)}
        if module.training and norms and self._joint is not None:
            with _of(self._joint, norms):
                return compute(args, kwargs)
        if module.training and (norms or _draws(module)):
            return self._each(compute, args, kwargs, norms)
        return compute(args, kwargs)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        compute = functools.partial(super().call_function, target)
        return self._each(compute, args, kwargs, {}) if target in _DRAWING else compute(args, kwargs)

    def _each(
        self,
        compute: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        norms: Mapping[str, _BatchNorm],
    ) -> torch.Tensor:
        """Compute for each device's records alone, and return the results one after the other."""
        split = [self._split(each) for each in args]
        named = {name: self._split(each) for name, each in kwargs.items()}
        outputs = []
        for number, own in enumerate(self._own):
            with _of(own, norms):
                mine = {name: each[number] for name, each in named.items()}
                outputs.append(compute(tuple(each[number] for each in split), mine))
        return torch.cat(outputs)

    def _split(self, value: Any) -> Sequence[Any]:
        if isinstance(value, torch.Tensor) and value.ndim and len(value) == sum(self._sizes):
            parts: tuple[torch.Tensor, ...] = torch.split(value, self._sizes)
            return parts
        return [value] * len(self._sizes)


@contextmanager
def _of(own: Own, norms: Mapping[str, _BatchNorm]) -> Iterator[None]:
    """Have a drive's own generator and running statistics in place."""
    before = {(name, key): buffer for name, norm in norms.items() for key, buffer in norm.named_buffers(recurse=False)}
    torch.set_rng_state(own.random)
    try:
        for (name, key), buffer in before.items():
            setattr(norms[name], key, own.buffers.setdefault(f"{name}.{key}", buffer.clone()))
        yield
    finally:
        for (name, key), buffer in before.items():
            own.buffers[f"{name}.{key}"] = getattr(norms[name], key)
            setattr(norms[name], key, buffer)
        own.random = torch.get_rng_state()


def _draws(module: nn.Module) -> bool:
    return any(isinstance(each, _DropoutNd | nn.RReLU) or getattr(each, "dropout", 0) for each in module.modules())


def _check(module: nn.Module, apart: bool) -> None:
    if not isinstance(module, fx.GraphModule):
        raise TypeError("a tail is a graph, as firmware_agent.cutting makes it")
    for node in module.graph.nodes:
        if apart and node.target in _MIXING:
            raise ConfigurationError(
                f"placement: {node.name}, behind the cut, normalises by a function, and the statistics of drives "
                "cannot be kept apart; use torch.nn.BatchNorm1d, 2d or 3d, cut behind it, or choose batch_norm: frozen"
            )
