"""Order in which a forward pass first uses a model's tensors, and the places to wait for one.

Every call of torch that gets a tensor of the model passes here, so that no use is missed, whichever module's tensor it
is: `nn.MultiheadAttention`, for one, uses its output projection without calling that module, and a hook before the
module's own forward pass would never run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from firmware_agent.common.weights import tied_names

OnUse = Callable[[str], None]


class UseWatch(TorchFunctionMode):
    """A context in which a function is told the name of each of a model's tensors before torch first uses it."""

    def __init__(self, model: nn.Module, on_use: OnUse) -> None:
        """Watch parameters and buffers of `model`; a tied parameter has its first name."""
        super().__init__()
        self._names = {id(tensor): name for name, tensor in sent_tensors(model).items()}
        self._on_use = on_use

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: Sequence[Any] = (),
        keywords: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = keywords or {}
        if self._names:  # nothing is left to be told of
            self._look(arguments)
            self._look(keywords.values())
        return function(*arguments, **keywords)

    def _look(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor):
                if (name := self._names.pop(id(value), None)) is not None:
                    self._on_use(name)
            elif isinstance(value, list | tuple):
                self._look(value)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Have the model compute as for evaluation; its modules' modes are put back."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


def sent_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by name, in the model's order; a tied parameter once, by its first name."""
    tied = tied_names(model)
    return {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if name not in tied}


def forward_order(model: nn.Module, *inputs: torch.Tensor) -> list[str]:
    """Return the names of `sent_tensors` as a forward pass first uses them; what it does not use comes last.

    The model computes as for evaluation, so that nothing in it changes; its mode is put back.

    Args:
        model: whose order is wanted.
        inputs: what it takes, of one record at least.
    """
    names: list[str] = []
    with evaluating(model), torch.no_grad(), UseWatch(model, names.append):
        model(*inputs)
    return [*names, *(name for name in sent_tensors(model) if name not in set(names))]
