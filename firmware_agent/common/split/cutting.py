"""A model in two parts, cut before one of its layers: the front for the drive, the tail for the host.

The cut is made in the model's graph as `torch.fx` traces it: what is computed before the first call that uses a tensor
of the layer is the front, all else the tail. What the front computes and the tail uses crosses. So several tensors may
cross, as where a shortcut goes round the layer. Sizes do not cross: the tail takes them from what does, for it may
compute with the records of several drives at once.

Of what the graph computes shapes are wanted, and no values. Yet it computes a few records in earnest: torch's meta
device, which computes nothing, imports torch's compiler, and that takes 20 s of wall time in an emulated drive.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.first_use import evaluating, sent_tensors
from firmware_agent.common.layer_costs import LayerWork, trace_layers
from firmware_agent.common.layer_names import find_layer
from firmware_agent.common.split.model_graph import (
    CannotCut,
    GraphValues,
    ModelTracer,
    TensorValue,
    copy_graph,
    first_line,
    holds_tensor,
)

# Two batch sizes at which the graph is traced, to tell dimensions that follow the batch from those that do not.
_FEW, _MORE = 2, 3


class Crossing(NamedTuple):
    """A tensor that crosses a cut: `shape` is that of one record, `dtype` has torch's name without its prefix."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def record_bytes(self) -> int:
        """Bytes of one record."""
        return prod(self.shape) * getattr(torch, self.dtype).itemsize  # type: ignore[no-any-return]


@dataclass(frozen=True)
class CutPoint:
    """A place where a model can be cut, or cannot.

    Attributes:
        layer: the name of the layer that the tail begins with.
        crossing: what the front hands over, in the order in which it is computed; empty if the cut cannot be made.
        reason: why it cannot; empty if it can.
        tail_bytes: of the values that the tail computes for each record, all of them together.
    """

    layer: str
    crossing: tuple[Crossing, ...]
    reason: str = ""
    tail_bytes: int = 0

    @property
    def record_bytes(self) -> int:
        """Bytes that cross for each record."""
        return sum(each.record_bytes for each in self.crossing)


class Cut(NamedTuple):
    """A model in two parts that share its parameters and buffers, by the same names.

    `front` takes images and returns a tuple of the crossing tensors; `tail` takes those and returns the model's output.
    """

    front: nn.Module
    tail: nn.Module
    point: CutPoint


def list_cuts(model: nn.Module, images: torch.Tensor) -> tuple[CutPoint, ...]:
    """Return where the model can be cut: a point for each layer of `trace_layers` but the first, in forward order.

    Args:
        model: it computes as for evaluation; nothing in it changes.
        images: what it takes, (records, ...), one record at least.
    """
    layers = trace_layers(model, images)
    try:
        traced = _Traced(model, images, layers)
    except CannotCut as error:
        return tuple(CutPoint(layer.name, (), str(error)) for layer in layers[1:])
    return tuple(traced.point(layer.name) for layer in layers[1:])


def cut_model(model: nn.Module, images: torch.Tensor, layer: str) -> Cut:
    """Cut the model before a layer.

    Args:
        model: as for `list_cuts`; it goes on to work as a whole.
        images: as for `list_cuts`.
        layer: the name of the layer that the tail begins with, as in `trace_layers`.

    Raises:
        ConfigurationError: the model has no such layer; it is the first one; or it cannot be cut there.
    """
    layers = trace_layers(model, images)
    find_layer([each.name for each in layers], layer)
    try:
        traced = _Traced(model, images, layers)
    except CannotCut as error:
        raise _refused(layer, str(error)) from error
    point = traced.point(layer)
    if point.reason:
        raise _refused(layer, point.reason)
    return Cut(*traced.parts(layer), point)


def _refused(layer: str, reason: str) -> ConfigurationError:
    return ConfigurationError(f"placement: the model cannot be cut before {layer!r}: {reason}; cut elsewhere")


class _Traced:
    """A model's graph, what its nodes compute, and where its layers begin in it."""

    def __init__(self, model: nn.Module, images: torch.Tensor, layers: Iterable[LayerWork]) -> None:
        self._model = model
        with self._unchanged() as changes:
            try:
                self._module = fx.GraphModule(model, ModelTracer().trace(model))
            except Exception as error:  # the user's code may raise anything when it is given no real tensor
                raise CannotCut(f"torch.fx cannot follow its forward pass ({first_line(error)})") from error
        if changes:
            raise CannotCut(f"its forward pass {changes[0]}, of which torch.fx takes note once and for all")
        self._nodes = list(self._module.graph.nodes)
        self._few, self._more = (self._values(images[:1].repeat_interleave(n, 0)) for n in (_FEW, _MORE))
        names = {id(tensor): name for name, tensor in sent_tensors(model).items()}
        self._uses = [self._used_by(node, names) for node in self._nodes]
        self._layers = {layer.name: set(layer.tensors) for layer in layers}
        self._layer_of = {name: number for number, layer in enumerate(self._layers.values()) for name in layer}
        # Name of a tensor -> the places of the first and of the last node that uses it.
        self._used: dict[str, tuple[int, int]] = {}
        for place, uses in enumerate(self._uses):
            for name in uses:
                self._used[name] = self._used.get(name, (place, place))[0], place
        self._along = [node for node in self._nodes if self._goes_along(node)]
        self._bytes = list(map(self._node_bytes, self._nodes))
        self._records = self._find_records()

    def point(self, layer: str) -> CutPoint:
        """Return what crosses before a layer, or why none can cut there."""
        try:
            front = self._front(layer)
            crossing = self._crossing(front)
            found = tuple(self._check_crossing(node) for node in crossing)
            self._check_aliases(crossing, front)
        except CannotCut as error:
            return CutPoint(layer, (), str(error))
        return CutPoint(layer, found, tail_bytes=self._record_bytes(front))

    def parts(self, layer: str) -> tuple[nn.Module, nn.Module]:
        """Return the two parts of a cut that can be made."""
        front = self._front(layer)
        crossing = self._crossing(front)
        before, after = fx.Graph(), fx.Graph()
        copies = {node: after.placeholder(node.name) for node in crossing}
        size = after.call_method("size", (copies[crossing[0]], 0))
        known = {
            node: self._rebuilt(node, lambda factor: after.call_function(operator.mul, (size, factor)))
            for node in self._handed_over(front)
            if node not in copies
        }
        copy_graph(before, [node for node in self._nodes if node in front], {}, crossing)
        copy_graph(
            after, [node for node in self._nodes if node not in front and node.op != "get_attr"], {**known, **copies}
        )
        if not size.users:
            after.erase_node(size)
        return self._part(before), self._part(after)

    def _values(self, images: torch.Tensor) -> dict[fx.Node, Any]:
        """Run the graph, without a trace in the model."""
        values = GraphValues(self._module)
        with self._unchanged():
            try:
                with evaluating(self._module), torch.no_grad():
                    values.run(images)
            except Exception as error:  # as above
                raise CannotCut(f"its graph as torch.fx has it does not run ({first_line(error)})") from error
        return values.of

    @contextmanager
    def _unchanged(self) -> Iterator[list[str]]:
        """Put the model's buffers and torch's generator back; say what was done to them."""
        before = [(buffer, buffer._version, buffer.clone()) for buffer in self._model.buffers()]
        changes = list[str]()
        with torch.random.fork_rng(devices=[]):
            random = torch.get_rng_state()
            try:
                yield changes
            finally:
                if not torch.equal(random, torch.get_rng_state()):
                    changes.append("draws random numbers without a tensor that is computed")
                if any(buffer._version != version for buffer, version, _ in before):
                    changes.append("changes a buffer without a tensor that is computed")
                with torch.no_grad():
                    for buffer, _, value in before:
                        buffer.copy_(value)

    def _used_by(self, node: fx.Node, names: Mapping[int, str]) -> set[str]:
        """Return the names of the model's tensors that a node computes with."""
        used: list[torch.Tensor] = []
        if node.op == "call_module":
            module = self._module.get_submodule(str(node.target))
            used += [*module.parameters(), *module.buffers()]
        attributes = (each for each in node.all_input_nodes if each.op == "get_attr")
        used += [operator.attrgetter(str(each.target))(self._module) for each in attributes]
        return {names[id(tensor)] for tensor in used if id(tensor) in names}

    def _find_records(self) -> set[fx.Node]:
        """Return the nodes whose values are the records, or made of them by nothing that could not be undone.

        Each way from the records must go through a weight of two dimensions or more, as a linear layer or a convolution
        has. What shifts, scales, reshapes or joins is none, trained or not.
        """
        mixing = {name for name, each in self._model.named_parameters() if sum(size > 1 for size in each.shape) > 1}
        records: set[fx.Node] = set()
        for node, uses in zip(self._nodes, self._uses, strict=True):
            of_records = not records.isdisjoint(node.all_input_nodes) and holds_tensor(self._few.get(node))
            if node.op == "placeholder" or (of_records and not uses & mixing):
                records.add(node)
        return records

    def _front(self, layer: str) -> set[fx.Node]:
        """Return the nodes before the layer's first, and what says something of their values alone."""
        number = list(self._layers).index(layer)
        begin = min((self._used[name][0] for name in self._layers[layer] if name in self._used), default=None)
        if begin is None:
            raise CannotCut("the graph that torch.fx traces does not use it")
        if any(self._layer_of[name] < number and self._used[name][0] == begin for name in self._uses[begin]):
            raise CannotCut(f"it begins within {self._nodes[begin].target}, which torch.fx takes as one call")
        if shared := sorted(name for name, (first, last) in self._used.items() if first < begin <= last):
            raise CannotCut(f"the tensor {shared[0]} is used on both sides of it")
        front = set(self._nodes[:begin])
        for node in self._along:
            if front.issuperset(node.all_input_nodes):
                front.add(node)
        return front

    def _goes_along(self, node: fx.Node) -> bool:
        """Tell whether a node only says something of its inputs, such as their size, or takes a tuple apart."""
        if node.op not in ("call_function", "call_method") or not node.all_input_nodes:
            return False
        if node.target is operator.getitem:
            return not self._is_tensor(node.all_input_nodes[0])
        return not holds_tensor(self._few[node])

    def _is_tensor(self, node: fx.Node) -> bool:
        return isinstance(self._few[node], TensorValue)

    def _record_bytes(self, front: set[fx.Node]) -> int:
        return sum(size for node, size in zip(self._nodes, self._bytes, strict=True) if node not in front) // _FEW

    def _node_bytes(self, node: fx.Node) -> int:
        """Return the bytes of a tensor that is computed, 0 of anything else."""
        value = self._few[node]
        computed = isinstance(value, TensorValue) and node.op.startswith("call_")
        return prod(value.shape) * value.dtype.itemsize if computed else 0

    def _handed_over(self, front: set[fx.Node]) -> list[fx.Node]:
        """Return the nodes of the front whose values the tail uses."""
        return [
            node
            for node in self._nodes
            if node in front and node.op != "get_attr" and any(user not in front for user in node.users)
        ]

    def _crossing(self, front: set[fx.Node]) -> list[fx.Node]:
        crossing = []
        for node in self._handed_over(front):
            if self._is_tensor(node):
                crossing.append(node)
            else:
                self._rebuilt(node, lambda factor: factor)
        if not crossing:
            raise CannotCut("nothing that is computed before it is used from there on")
        return crossing

    def _check_crossing(self, node: fx.Node) -> Crossing:
        few, more = self._few[node], self._more[node]
        if node.op == "placeholder":
            raise CannotCut("the records themselves are used from there on, and no record leaves its drive")
        if node in self._records:
            raise CannotCut(
                f"{node.name}, which crosses, still shows the records, and no record leaves its drive: no weight of a "
                "linear layer or a convolution lies before it"
            )
        if (few.shape[:1], more.shape[:1]) != ((_FEW,), (_MORE,)) or few.shape[1:] != more.shape[1:]:
            raise CannotCut(f"{node.name}, which crosses, has the shape {list(few.shape)}: not a value for each record")
        return Crossing(node.name, few.shape[1:], str(few.dtype).removeprefix("torch."))

    def _check_aliases(self, crossing: list[fx.Node], front: set[fx.Node]) -> None:
        """Refuse to part two values of one memory of which the tail writes into one."""
        storages = [self._few[node].storage for node in crossing]
        for node, storage in zip(crossing, storages, strict=True):
            if storages.count(storage) > 1 and any(map(self._writes, set(node.users) - front)):
                raise CannotCut(f"{node.name}, which crosses, shares its memory with another and is changed in place")

    def _writes(self, node: fx.Node) -> bool:
        """Tell whether a node changes its input in place."""
        if node.op == "call_module":
            return bool(getattr(self._module.get_submodule(str(node.target)), "inplace", False))
        name = node.target if isinstance(node.target, str) else node.target.__name__
        return bool(node.kwargs.get("inplace")) or name.endswith("_") or name in ("iadd", "isub", "imul", "itruediv")

    def _rebuilt(self, node: fx.Node, times_records: Callable[[int], Any]) -> Any:
        """Return how the tail comes by a value that is no tensor: a constant, or so many times its records."""

        def rebuild(few: Any, more: Any) -> Any:
            if isinstance(few, tuple | list) and isinstance(more, tuple | list) and len(few) == len(more):
                return tuple(map(rebuild, few, more))
            if few is None or isinstance(few, bool | str | torch.dtype | torch.device | int):
                if few == more:
                    return few
                if isinstance(few, int) and few * _MORE == more * _FEW and few % _FEW == 0:
                    return times_records(few // _FEW)
            raise CannotCut(f"{node.name}, which crosses, is a {type(few).__name__}, not a tensor")

        return rebuild(self._few[node], self._more[node])

    def _part(self, graph: fx.Graph) -> nn.Module:
        """Return a graph with its tensors; those that are not in the model's state are not in the part's either."""
        graph.lint()
        part = fx.GraphModule(self._module, graph)
        kept = set(self._model.state_dict())
        for name, buffer in list(part.named_buffers(remove_duplicate=False)):
            if name not in kept:
                parent, _, key = name.rpartition(".")
                part.get_submodule(parent).register_buffer(key, buffer, persistent=False)
        return part
