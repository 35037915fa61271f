"""Optimisers by name and class, made without torch's compiler."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from firmware_agent.common.errors import ModelError

Target = Callable[..., Any]
"""A class of optimisers, or a function that makes one."""
_REFUSED = {
    "LBFGS": "it evaluates the loss several times in one step, and a step here has one gradient",
    "SparseAdam": "it takes sparse gradients, and those here are dense; use Adam",
}


def find_torch_optimiser(name: str) -> type[torch.optim.Optimizer]:
    """Return the class of `torch.optim` of this name, in upper or lower case.

    Raises:
        ModelError: there is none, or it cannot work here.
    """
    base, every = torch.optim.Optimizer, vars(torch.optim).items()
    found = {key: each for key, each in every if isinstance(each, type) and issubclass(each, base) and each is not base}
    name = name if name in found else {key.lower(): key for key in found}.get(name.lower(), name)
    if name in _REFUSED:
        raise ModelError(f"{name} cannot be used: {_REFUSED[name]}")
    if name not in found:
        usable = {key.lower(): key for key in found if key not in _REFUSED}
        near = difflib.get_close_matches(name.lower(), usable, n=1)
        hint = f"did you mean {usable[near[0]]!r}?" if near else f"there are: {', '.join(sorted(usable.values()))}"
        raise ModelError(f"torch.optim has no {name!r}; {hint} Your own: my_file.py:Class or package.module:Class")
    return found[name]


def make_torch_optimiser(
    target: Target, parameters: Sequence[torch.Tensor], arguments: Mapping[str, Any], learning_rate: float
) -> torch.optim.Optimizer:
    """Return an optimiser of these parameters.

    Args:
        target: makes it.
        parameters: that it steps.
        arguments: options of a job; lists become tuples.
        learning_rate: is `lr` where there is such an argument.

    Raises:
        ModelError: what was made is no optimiser.
        BaseException: the class itself raised.
    """
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()}
    given |= {"lr": learning_rate} if "lr" in inspect.signature(target).parameters else {}
    kind: Target = (
        _uncompiled(target) if isinstance(target, type) and issubclass(target, torch.optim.Optimizer) else target
    )
    made = kind(parameters, **given)
    if not isinstance(made, torch.optim.Optimizer):
        raise ModelError(f"what it made is a {type(made).__name__}, no torch.optim.Optimizer; subclass that")
    return made


def _uncompiled(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Return an optimiser's class without what torch's own methods do for its compiler.

    That imports the compiler, which takes about as long as all the rest of torch. No gradient is taken of a step here.
    """
    own = {name: getattr(kind, name) for name in ("add_param_group", "zero_grad", "step")}
    plain = {name: inspect.unwrap(method) for name, method in own.items() if method.__module__.startswith("torch.")}
    if "step" in plain:
        plain["step"] = torch.no_grad()(plain["step"])
    return type(kind.__name__, (kind,), plain)
