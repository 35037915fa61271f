"""A model as a graph of torch.fx: tracing it, and the values and shapes at its nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm


class CannotCut(Exception):
    """Why a graph cannot be cut."""


@dataclass(frozen=True)
class TensorValue:
    """Shape and dtype of a tensor at a node, and the memory that it lies in."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    storage: int


class ModelTracer(fx.Tracer):
    """Traces a module that is given images and nothing else; batch normalisation of any kind is one call."""

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Return the function to trace, and its arguments: the module and its images."""
        return root_fn, [self.root, self.create_proxy("placeholder", "images", (), {})]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module is one call of the graph."""
        return isinstance(m, _BatchNorm) or super().is_leaf_module(m, module_qualified_name)


class GraphValues(fx.Interpreter):
    """Notes what each node of a graph computes."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.of: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Compute a node, and note its value."""
        value = super().run_node(n)
        self.of[n] = describe_value(value)
        return value


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or its type without one."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def describe_value(value: Any) -> Any:
    """Return a node's value with a `TensorValue` in place of each tensor."""
    if isinstance(value, torch.Tensor):
        return TensorValue(tuple(value.shape), value.dtype, value.untyped_storage()._cdata)
    return tuple(map(describe_value, value)) if isinstance(value, tuple | list) else value


def holds_tensor(value: Any) -> bool:
    """Return whether a described value has a tensor in it."""
    if isinstance(value, tuple | list):
        return any(map(holds_tensor, value))
    return isinstance(value, TensorValue)


def copy_graph(
    graph: fx.Graph, nodes: list[fx.Node], copies: dict[fx.Node, Any], outputs: list[fx.Node] | None = None
) -> None:
    """Copy nodes into a graph; `copies` says what stands for nodes of elsewhere, `outputs` which ones it returns."""

    def copied(node: fx.Node) -> Any:
        if node not in copies and node.op == "get_attr":
            copies[node] = graph.node_copy(node)
        return copies[node]

    for node in nodes:
        if node.op != "get_attr":
            copies[node] = graph.node_copy(node, copied)
    if outputs is not None:
        graph.output(tuple(copies[node] for node in outputs))
