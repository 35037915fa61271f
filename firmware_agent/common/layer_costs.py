"""Layers of a model as units of transfer: stretches of the forward pass, and the work of each.

A layer begins where the forward pass first uses a tensor of a module none of whose tensors it has used before, and goes
on to where the next one begins; activations and pooling belong to what comes before them. Modules whose tensors are
taken at once, as attention takes those of its projections, are one layer. So a layer is what can be computed between
one wait for parameters and the next, whatever the model's modules are. A tensor that is used several times belongs to
its first use: there it is needed first, and there its gradient is complete last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from firmware_agent.common.first_use import UseWatch, evaluating, sent_tensors

# What reads and writes a value without a matrix product is bound by memory: it counts as so many operations of one. An
# A53 does some 4 GFLOP/s in a product of matrices and reads and writes some 0.5 G values/s (assumed).
OPERATIONS_PER_VALUE = 8


@dataclass(frozen=True)
class LayerWork:
    """A stretch of the forward pass.

    Attributes:
        name: of the module whose tensor begins it; that of the model's own tensors is empty.
        tensors: names of those first used in it, in that order, -> bytes; parameters and buffers, tied ones once.
        forward_operations: multiplications and additions of its products, for the images it was traced with, and
            `OPERATIONS_PER_VALUE` for each value that anything else puts out.
        backward_operations: as many for the gradients of its tensors if any is trained, and as many again for those of
            its inputs if anything before them is.
    """

    name: str
    tensors: Mapping[str, int]
    forward_operations: float
    backward_operations: float


def trace_layers(model: nn.Module, *inputs: torch.Tensor) -> tuple[LayerWork, ...]:
    """Return the model's layers in forward order.

    The model computes as for evaluation, so that nothing in it changes; its modes are put back. A tensor that this
    does not use, such as a count of batches, belongs to its module's layer, to the last one if there is none.

    Args:
        model: with one forward pass per step.
        inputs: what it takes, each (records, ...); the operations are those of so many.
    """
    counter = _Counter()
    cuts = _Cuts(counter)
    # With gradients: else some modules take a short cut past torch's own products.
    with evaluating(model), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), UseWatch(model, cuts.use), counter:
        model(*inputs)
    return cuts.works(sent_tensors(model))


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what torch computes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0.0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return that torch's compiler need not be told: it would be imported for that, 20 s of an emulated drive."""
        return False

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        out = function(*arguments, **(keywords or {}))
        self.operations += _count(function, arguments, keywords or {}, out)
        return out


class _Cuts:
    """Cuts a forward pass where the first tensor of another module is used."""

    def __init__(self, counter: _Counter) -> None:
        self._counter = counter
        self._layers: list[tuple[str, list[str]]] = []
        self._of_module: dict[str, list[str]] = {}
        # What had been counted when each layer began.
        self._begins: list[float] = []

    def use(self, name: str) -> None:
        """Note the first use of a tensor."""
        module, now = name.rpartition(".")[0], self._counter.operations
        if module not in self._of_module:
            if not self._layers or now > self._begins[-1]:
                self._layers.append((module, []))
                self._begins.append(now)
            self._of_module[module] = self._layers[-1][1]
        self._of_module[module].append(name)

    def works(self, tensors: Mapping[str, torch.Tensor]) -> tuple[LayerWork, ...]:
        """Return the layers; the first has what comes before it, the last what no layer of its module has."""
        layers = self._layers or [("", [])]
        used = {name for _, names in layers for name in names}
        for name in tensors:
            if name not in used:
                self._of_module.get(name.rpartition(".")[0], layers[-1][1]).append(name)
        works, trained_before = [], False
        for (module, names), (begin, end) in zip(
            layers, pairwise([0.0, *self._begins[1:], self._counter.operations]), strict=True
        ):
            own, forward = any(tensors[name].requires_grad for name in names), end - begin
            sizes = {name: tensors[name].numel() * tensors[name].element_size() for name in names}
            works.append(LayerWork(module, sizes, forward, forward * (own + trained_before)))
            trained_before = trained_before or own
        return tuple(works)


def _count(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], out: Any) -> float:
    known = flop_registry.get(function._overloadpacket)
    if known is not None:
        return float(known(*arguments, **keywords, out_val=out))
    outs = [each for each in (out if isinstance(out, list | tuple) else [out]) if isinstance(each, torch.Tensor)]
    if "batch_norm" in function._overloadpacket.__name__:
        outs = outs[:1]  # some devices put out its statistics too
    places = {each.untyped_storage()._cdata for each in arguments if isinstance(each, torch.Tensor)}
    # What only looks at its input in another way takes no time; what writes into it does.
    looks = function.is_view or (
        not function._schema.is_mutable and any(o.untyped_storage()._cdata in places for o in outs)
    )
    return 0.0 if looks else float(OPERATIONS_PER_VALUE * sum(prod(each.shape) for each in outs))
