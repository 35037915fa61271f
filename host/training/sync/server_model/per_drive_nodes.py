"""Nodes of the host's part that are computed for each drive separately; all others run for all drives at once."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

# Two batch sizes at which a graph is traced, to tell dimensions that follow the batch from constant ones.
_NUMBERS = 5, 7


@dataclass
class PerDriveState:
    """What is a drive's own within a step: its generator's state, and buffers by name."""

    random: torch.Tensor
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)

    def copy(self) -> PerDriveState:
        """Return one that goes its own way from here."""
        return PerDriveState(self.random.clone(), {name: buffer.clone() for name, buffer in self.buffers.items()})

    @contextmanager
    def placed(self, modules: Mapping[str, nn.Module]) -> Iterator[None]:
        """Have its generator and its own values of these modules' buffers in place; all is put back."""
        before = [
            (f"{name}.{key}" if name else key, module, key, buffer)
            for name, module in modules.items()
            for key, buffer in module.named_buffers(recurse=False)
        ]
        random = torch.get_rng_state()
        torch.set_rng_state(self.random)
        try:
            for name, module, key, buffer in before:
                setattr(module, key, self.buffers.setdefault(name, buffer.clone()))
            yield
        finally:
            for name, module, key, buffer in before:
                self.buffers[name] = getattr(module, key)
                setattr(module, key, buffer)
            self.random = torch.get_rng_state()
            torch.set_rng_state(random)


@dataclass(frozen=True)
class Alone:
    """Which nodes of a tail compute for each drive's records alone.

    Attributes:
        nodes: these; what they put out has a row for each record.
        draws: those among them that draw random numbers.
        rows: the nodes that put out a row for each record.
    """

    nodes: frozenset[fx.Node]
    draws: frozenset[fx.Node]
    rows: frozenset[fx.Node]


def batch_norms(module: nn.Module) -> dict[str, nn.Module]:
    """Return the layers of batch normalisation that work with what they see, by name."""
    return {name: each for name, each in module.named_modules() if isinstance(each, _BatchNorm) and each.training}


def find_alone(tail: fx.GraphModule, few: Sequence[torch.Tensor], more: Sequence[torch.Tensor]) -> Alone:
    """Return what must be computed for each drive alone: what draws, and batch normalisation that is training.

    `few` and `more` are two inputs, as `make_samples` makes them. The module is as before.
    """
    looks = [_Look(tail), _Look(tail)]
    modules = dict(tail.named_modules())
    for look, values in zip(looks, (few, more), strict=True):
        with torch.no_grad(), PerDriveState(torch.get_rng_state()).placed(modules):
            look.run(*(value.clone() for value in values))
    norms = batch_norms(tail)
    draws = looks[0].draws | looks[1].draws
    normalises = {node for node in tail.graph.nodes if node.op == "call_module" and str(node.target) in norms}
    rows = {
        node
        for node in looks[0].lengths
        if (looks[0].lengths[node], looks[1].lengths[node]) == (len(few[0]), len(more[0]))
    }
    return Alone(frozenset(draws | normalises), frozenset(draws), frozenset(rows))


def make_samples(values: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> tuple[list[torch.Tensor], ...]:
    """Return inputs for two numbers of records, given shape and dtype of one record's: random ones, or zeros."""
    generator = torch.Generator().manual_seed(0)
    return tuple(
        [
            torch.rand(number, *shape, dtype=dtype, generator=generator)
            if dtype.is_floating_point
            else torch.zeros(number, *shape, dtype=dtype)
            for shape, dtype in values
        ]
        for number in _NUMBERS
    )


class Grouped(fx.Interpreter):
    """Runs a tail for the records of several drives, one drive's after the other's."""

    def __init__(self, tail: fx.GraphModule, alone: Alone, sizes: Sequence[int], own: Sequence[PerDriveState]) -> None:
        """Prepare a run.

        Args:
            tail: the graph.
            alone: what runs for each drive alone.
            sizes: records of each drive.
            own: what is each drive's own.
        """
        super().__init__(tail)
        self._alone, self._own = alone, own
        self._begins = [sum(sizes[:place]) for place in range(len(sizes))]
        self._sizes = list(sizes)
        self._norms = batch_norms(tail)

    def run_node(self, n: fx.Node) -> Any:
        """Compute a node, for each drive alone if it must be."""
        if n not in self._alone.nodes:
            return super().run_node(n)
        name, outputs = str(n.target), list[torch.Tensor]()
        norms = {name: self._norms[name]} if n.op == "call_module" and name in self._norms else {}
        for place, own in enumerate(self._own):
            part = functools.partial(self._part, n, place)
            arguments, keywords = fx.node.map_arg(n.args, part), fx.node.map_arg(n.kwargs, part)
            with own.placed(norms):
                outputs.append(getattr(self, n.op)(n.target, arguments, keywords))
        return torch.cat(outputs)

    def _part(self, user: fx.Node, place: int, node: fx.Node) -> Any:
        """Return a drive's part of what a node put out; what draws may write into it."""
        value = self.env[node]
        if node not in self._alone.rows:
            return value
        part = value.narrow(0, self._begins[place], self._sizes[place])
        return part.clone() if user in self._alone.draws else part


class _Look(fx.Interpreter):
    """Notes which nodes draw, and how long what they put out is."""

    def __init__(self, tail: fx.GraphModule) -> None:
        super().__init__(tail)
        self.draws: set[fx.Node] = set()
        self.lengths: dict[fx.Node, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        before = torch.get_rng_state()
        value = super().run_node(n)
        if not torch.equal(before, torch.get_rng_state()):
            self.draws.add(n)
        self.lengths[n] = len(value) if isinstance(value, torch.Tensor) and value.ndim else -1
        return value
