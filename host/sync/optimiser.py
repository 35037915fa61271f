"""The host's optimiser: any class of `torch.optim`, stepped tensor by tensor where it can be."""

from __future__ import annotations

import difflib
import inspect
import math
import os
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch

from csd_emu.paths import Paths
from firmware_agent.errors import CheckpointError, ConfigurationError
from firmware_agent.exchange import Array
from host.evaluation import Structure
from host.job import JobConfig
from host.sync.sections import OptimiserSection

_WHERE = "sync.optimiser"
_REFUSED = {
    "LBFGS": "it evaluates the loss several times in one step, and each would be an exchange with all drives",
    "SparseAdam": "it takes sparse gradients, and drives send dense ones; use Adam",
}
# Of these a tensor's step depends on its own gradient and state alone.
_TENSOR_WISE = {
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Muon", "NAdam", "RAdam", "RMSprop"),
    *("Rprop", "SGD"),
}
# How state that is no tensor is written down: as an array of no dimension.
_NUMBERS: dict[str, type] = {"bool": bool, "int": int, "float": float}
# As torch.nn.utils.clip_grad_norm_.
_CLIP_EPS = 1e-6


class HostOptimiser:
    """Steps parameters in place; they share memory with the arrays that were given.

    Attributes:
        needs_all: why no tensor can be stepped before all gradients are there; None if each can as soon as its own is.
    """

    def __init__(
        self,
        parameters: Mapping[str, Array],
        section: OptimiserSection,
        learning_rate: float,
        momentum: float = 0.0,
        clip_norm: float | None = None,
    ) -> None:
        """Make the optimiser.

        Args:
            parameters: name -> writeable float array.
            section: which optimiser, and its arguments beside the learning rate; lists become tuples.
            learning_rate: until a step has another.
            momentum: for optimisers that have an argument of this name and SGD's meaning, unless `section` gives it.
            clip_norm: the whole gradient is scaled down to this Euclidean norm.

        Raises:
            ConfigurationError: `torch.optim` has no such optimiser, it cannot work here, or refuses its arguments.
        """
        self._parameters = {name: torch.from_numpy(array) for name, array in parameters.items()}
        self._clip_norm = clip_norm
        kind, arguments = _find(section.name), _arguments(section, learning_rate, momentum)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Paths.default().torch))
        apart = section.name in _TENSOR_WISE
        self.needs_all = _reason(section.name, apart, clip_norm)
        groups = [[name] for name in self._parameters] if apart else [list(self._parameters)]
        self._optimisers: dict[str, torch.optim.Optimizer] = {}
        for names in groups:
            optimiser = _make(kind, [self._parameters[name] for name in names], arguments)
            self._optimisers |= dict.fromkeys(names, optimiser)

    def step_tensor(self, name: str, gradient: Array, learning_rate: float) -> None:
        """Step one parameter.

        Raises:
            ConfigurationError: this optimiser needs all gradients at once (see `needs_all`).
        """
        if self.needs_all is not None:
            raise ConfigurationError(f"{name} cannot be stepped alone: {self.needs_all}")
        self._step({name: gradient}, learning_rate, 1.0)

    def step_all(self, gradients: Mapping[str, Array], learning_rate: float) -> None:
        """Step every parameter, with the whole gradient clipped if that was asked for.

        Raises:
            ConfigurationError: a gradient is missing, or is of no parameter.
        """
        if gradients.keys() != self._parameters.keys():
            odd = sorted(gradients.keys() ^ self._parameters.keys())
            raise ConfigurationError(f"the gradients are not those of the parameters; see {', '.join(odd[:3])}")
        scale = 1.0
        if self._clip_norm is not None:
            norm = math.sqrt(sum(_square(gradients[name]) for name in self._parameters))
            scale = min(1.0, self._clip_norm / (norm + _CLIP_EPS)) if not math.isnan(norm) else math.nan
        self._step(gradients, learning_rate, scale)

    def state(self) -> dict[str, Array]:
        """Return the optimiser's state as arrays, for a checkpoint; the arrays are not copied.

        Raises:
            ConfigurationError: it holds something that is neither tensor nor number.
        """
        found: dict[str, Array] = {}
        for name, parameter in self._parameters.items():
            for key, value in self._optimisers[name].state.get(parameter, {}).items():
                kind = "tensor" if isinstance(value, torch.Tensor) else type(value).__name__
                if isinstance(value, torch.Tensor):
                    found[f"{kind}/{key}/{name}"] = value.detach().numpy()
                elif kind in _NUMBERS:
                    found[f"{kind}/{key}/{name}"] = np.asarray(value)
                elif value is not None:
                    raise ConfigurationError(f"{_WHERE}: cannot write down {key}, a {kind}; choose another optimiser")
        return found

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go on from `state`, as `state()` returned it.

        Raises:
            CheckpointError: it is of another model or optimiser; nothing is changed.
        """
        loaded: dict[str, dict[str, Any]] = {name: {} for name in self._parameters}
        for entry, array in state.items():
            kind, _, rest = entry.partition("/")
            key, _, name = rest.partition("/")
            if name not in loaded or (kind != "tensor" and (kind not in _NUMBERS or array.shape != ())):
                raise CheckpointError(
                    f"the optimiser's state has {entry!r}, which does not fit this job's model or optimiser; resume "
                    "with what wrote it"
                )
            loaded[name][key] = torch.from_numpy(np.array(array)) if kind == "tensor" else _NUMBERS[kind](array[()])
        for name, values in loaded.items():
            own = self._optimisers[name].state
            own.pop(self._parameters[name], None)
            if values:
                own[self._parameters[name]] = values

    def _step(self, gradients: Mapping[str, Array], learning_rate: float, scale: float) -> None:
        touched = {}
        for name, gradient in gradients.items():
            parameter, optimiser = self._parameters[name], self._optimisers[name]
            parameter.grad = torch.from_numpy(np.require(gradient, requirements="W")).to(parameter.dtype)
            if scale != 1.0:
                parameter.grad = parameter.grad * scale
            touched[id(optimiser)] = optimiser
        for optimiser in touched.values():
            for group in optimiser.param_groups:
                group["lr"] = learning_rate
            optimiser.step()
            optimiser.zero_grad()


def make_optimiser(job: JobConfig, structure: Structure, weights: Mapping[str, Array]) -> HostOptimiser:
    """Return the optimiser of a job; the trained ones among the `weights` share their memory with it.

    Raises:
        ConfigurationError: see `HostOptimiser`.
    """
    trained = {name: weights[name] for name in structure.trained}
    return HostOptimiser(trained, job.sync.optimiser, job.learning_rate, job.momentum, job.sync.clip_norm)


def scale_learning_rate(
    rule: Literal["constant", "linear", "sqrt"], learning_rate: float, records: int, first_records: int
) -> float:
    """Return the learning rate for a global batch of `records`, when `learning_rate` is that of `first_records`.

    ``linear`` keeps what an epoch moves the weights by (Goyal et al. 2017, arXiv:1706.02677, section 2.1), ``sqrt``
    the variance of a step (Krizhevsky 2014, arXiv:1404.5997, section 3.3).

    Raises:
        ConfigurationError: a batch has no record.
    """
    if records < 1 or first_records < 1:
        raise ConfigurationError(f"a learning rate for {records} records after {first_records}: both must be positive")
    ratio = records / first_records
    return learning_rate * {"constant": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[rule]


def _find(name: str) -> type[torch.optim.Optimizer]:
    base = torch.optim.Optimizer
    named = vars(torch.optim).items()
    found = {key: each for key, each in named if isinstance(each, type) and issubclass(each, base) and each is not base}
    if name in _REFUSED:
        raise ConfigurationError(f"{_WHERE}.name: {name} cannot be used: {_REFUSED[name]}")
    if name not in found:
        usable = {key.lower(): key for key in found if key not in _REFUSED}
        near = difflib.get_close_matches(name.lower(), usable, n=1)
        hint = f"did you mean {usable[near[0]]!r}?" if near else f"there are: {', '.join(sorted(usable.values()))}"
        raise ConfigurationError(f"{_WHERE}.name: torch.optim has no {name!r}; {hint}")
    return found[name]


def _arguments(section: OptimiserSection, learning_rate: float, momentum: float) -> dict[str, Any]:
    if "lr" in section.arguments:
        raise ConfigurationError(f"{_WHERE}.arguments.lr: the rate is the job's own key; set learning_rate")
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in section.arguments.items()}
    default = {"momentum": momentum} if section.name == "SGD" else {}
    return default | given | {"lr": learning_rate}


def _make(
    kind: type[torch.optim.Optimizer], parameters: list[torch.Tensor], arguments: Mapping[str, Any]
) -> torch.optim.Optimizer:
    known = [name for name in inspect.signature(kind).parameters if name not in ("params", "lr")]
    for key in arguments:
        if key != "lr" and key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
            raise ConfigurationError(f"{_WHERE}.arguments.{key}: {kind.__name__} does not take it; {hint}")
    try:
        return kind(parameters, **arguments)
    except (TypeError, ValueError, RuntimeError, LookupError, AttributeError) as error:
        raise ConfigurationError(f"{_WHERE}: torch.optim.{kind.__name__} refuses this: {error}") from error


def _reason(name: str, apart: bool, clip_norm: float | None) -> str | None:
    if not apart:
        return f"whether torch.optim.{name} steps each tensor by itself is not known"
    return None if clip_norm is None else "clip_norm needs the norm of the whole gradient"


def _square(gradient: Array) -> float:
    flat = gradient.reshape(-1).astype(np.float64)
    return float(flat @ flat)
