"""The host's optimiser: any class of `torch.optim`, stepped tensor by tensor or block by block where it can be."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from csd_emu.util.nearest_word import hint_at
from firmware_agent.common.errors import (
    CheckpointError,
    ConfigurationError,
    ModelError,
    PluginError,
    PluginFailed,
    user_errors,
)
from firmware_agent.common.optimisers.torch_optimisers import (
    find_torch_optimiser,
    make_torch_optimiser,
)
from firmware_agent.common.slices import Array
from host.config.job_file import JobConfig
from host.config.optimizer_key import AnyOptimiser
from host.config.plugins.plugin_loading import Plugin, describe_error
from host.core.evaluation import NormSum, Structure
from host.training.tensor_ranges import BLOCK_BYTES, TensorRange, item_blocks

# Of these a tensor's step depends on its own gradient and state alone.
_TENSOR_WISE = {
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Muon", "NAdam", "RAdam", "RMSprop"),
    *("Rprop", "SGD"),
}
# Of these an element's does: the state has a tensor's shape, but for counts and factors that all elements share.
_ELEMENT_WISE = _TENSOR_WISE - {"Adafactor", "Muon"}
# How state that is no tensor is written down: as an array of no dimension.
_NUMBERS: dict[str, type] = {"bool": bool, "int": int, "float": float}
# As torch.nn.utils.clip_grad_norm_.
_CLIP_EPS = 1e-6


class HostOptimiser:
    """Steps parameters in place; they share memory with the arrays that were given.

    Attributes:
        needs_all: why no tensor can be stepped before all gradients are there; None if each can as soon as its own is.
        block_bytes: in pieces of so many bytes a tensor can be stepped; None if only as a whole.
    """

    def __init__(
        self,
        parameters: Mapping[str, Array],
        section: AnyOptimiser,
        learning_rate: float,
        momentum: float = 0.0,
        clip_norm: float | None = None,
        own: Plugin | None = None,
    ) -> None:
        """Make the optimiser.

        Args:
            parameters: name -> writeable float array.
            section: which optimiser, and its arguments beside the learning rate; lists become tuples.
            learning_rate: until a step has another.
            momentum: for optimisers that have an argument of this name and SGD's meaning, unless `section` gives it.
            clip_norm: the whole gradient is scaled down to this Euclidean norm.
            own: the class, if it is one of the user's own.

        Raises:
            ConfigurationError: `torch.optim` has no such optimiser, it cannot work here, or refuses its arguments.
        """
        self._parameters = {name: torch.from_numpy(array) for name, array in parameters.items()}
        self._clip_norm, self._made_of = clip_norm, (section, learning_rate, momentum, clip_norm, own)
        self._own, arguments = own, _arguments(section, momentum)
        name = section.name if own is not None else _find(section).__name__
        apart = name in _TENSOR_WISE
        self.needs_all = _reason(name if own is not None else f"torch.optim.{name}", apart, clip_norm)
        self.block_bytes = BLOCK_BYTES if name in _ELEMENT_WISE else None
        # Each tensor's blocks: views of its memory, by their first byte. Optimisers see these as their parameters.
        self._blocks = {name: _views(parameter, self.block_bytes) for name, parameter in self._parameters.items()}
        groups = [[name] for name in self._parameters] if apart else [list(self._parameters)]
        self._optimisers: dict[str, torch.optim.Optimizer] = {}
        for names in groups:
            views = [view for name in names for view in self._blocks[name].values()]
            optimiser = _make(section, own, views, arguments, learning_rate)
            self._optimisers |= dict.fromkeys(names, optimiser)

    def step_block(self, block: TensorRange, gradient: Array, learning_rate: float) -> None:
        """Step one block of a parameter, as `tensor_ranges.cut_blocks` cuts it, or several of them as one.

        Raises:
            ConfigurationError: this optimiser needs all gradients at once (see `needs_all`).
        """
        if self.needs_all is not None:
            raise ConfigurationError(f"{block.tensor} cannot be stepped alone: {self.needs_all}")
        last = max(block.end - 1, block.start)
        views = [view for start, view in self._blocks[block.tensor].items() if block.start <= start <= last]
        whole = torch.from_numpy(np.require(gradient, requirements="W"))
        for view, part in zip(views, _split(whole, views), strict=True):
            view.grad = part.to(view.dtype).view_as(view)
        _step_once(self._optimisers[block.tensor], learning_rate)

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
        for name, array in gradients.items():
            views = self._blocks[name].values()
            gradient = torch.from_numpy(np.require(array, requirements="W")).to(self._parameters[name].dtype)
            if scale != 1.0:
                gradient = gradient * scale
            for view, part in zip(views, _split(gradient, views), strict=True):
                view.grad = part
        for optimiser in dict.fromkeys(self._optimisers.values()):
            if self._own is None:
                _step_once(optimiser, learning_rate)
            else:
                self._own.guard("a step", partial(_step_once, optimiser, learning_rate))

    def state(self) -> dict[str, Array]:
        """Return the optimiser's state as arrays, for a checkpoint: those of a tensor's blocks put together.

        Blocks that have not taken the same steps, as when all devices were lost in the middle of one, stay apart.

        Raises:
            ConfigurationError: it holds something that is neither tensor nor number.
        """
        found: dict[str, Array] = {}
        for name, parameter in self._parameters.items():
            states = {start: self._optimisers[name].state.get(v, {}) for start, v in self._blocks[name].items()}
            if _alike(list(states.values())):
                states = {0: _together(list(states.values()), parameter.shape)}
            for start, state in states.items():
                prefix = f"{start}:" if len(states) > 1 else ""
                found |= {f"{prefix}{kind}/{key}/{name}": a for kind, key, a in _written(state)}
        return found

    def state_after_a_step(self) -> dict[str, Array]:
        """Return a state with the entries, shapes and dtypes of one that has taken steps; its values mean nothing."""
        zeros = {name: np.zeros_like(parameter.numpy()) for name, parameter in self._parameters.items()}
        other = HostOptimiser(zeros, *self._made_of)
        other.step_all({name: np.zeros_like(array) for name, array in zeros.items()}, 0.0)
        return other.state()

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go on from `state`, as `state()` returned it.

        Raises:
            CheckpointError: it is of another model or optimiser; nothing is changed.
        """
        loaded: dict[str, dict[int, dict[str, Any]]] = {
            name: {start: {} for start in views} for name, views in self._blocks.items()
        }
        for entry, array in state.items():
            place, _, rest = entry.partition("/")
            key, _, name = rest.partition("/")
            block, _, kind = place.rpartition(":")
            starts = list(loaded.get(name, ())) if not block else [int(block)] if block.isdecimal() else []
            known = starts and all(start in loaded.get(name, ()) for start in starts)
            if not known or (kind != "tensor" and (kind not in _NUMBERS or array.shape != ())):
                raise CheckpointError(
                    f"the optimiser's state has {entry!r}, which does not fit this job's model or optimiser; resume "
                    "with what wrote it"
                )
            whole = torch.from_numpy(np.array(array)) if kind == "tensor" else _NUMBERS[kind](array[()])
            for start in starts:
                loaded[name][start][key] = whole if block else self._cut(whole, name, start)
        for name, blocks in loaded.items():
            for start, values in blocks.items():
                own, view = self._optimisers[name].state, self._blocks[name][start]
                own.pop(view, None)
                if values:
                    own[view] = values

    def _cut(self, value: Any, name: str, start: int) -> Any:
        """Return a block's part of one entry of a tensor's state; no two blocks share memory."""
        parameter, view = self._parameters[name], self._blocks[name][start]
        if not isinstance(value, torch.Tensor):
            return value
        if value.shape != parameter.shape or view is parameter:
            return value.clone()
        first = start // parameter.element_size()
        return value.reshape(-1)[first : first + view.numel()].clone()


def make_optimiser(
    job: JobConfig, structure: Structure, weights: Mapping[str, Array], own: Plugin | None = None
) -> HostOptimiser:
    """Return the optimiser of a job; the trained ones among the `weights` share their memory with it.

    `own` is the class, if it is one of the user's own.

    Raises:
        ConfigurationError: see `HostOptimiser`.
    """
    trained = {name: weights[name] for name in structure.trained}
    return HostOptimiser(trained, job.chosen_optimiser, job.learning_rate, job.momentum, job.chosen_clip_norm, own)


def try_optimiser(
    job: JobConfig, structure: Structure, weights: Mapping[str, Array], own: Plugin | None = None
) -> None:
    """Make the optimiser of a job, so that what it refuses is said; one of the user's own takes a step.

    Raises:
        ConfigurationError: see `HostOptimiser`.
        PluginError: a step of the user's own failed.
    """
    made = make_optimiser(job, structure, weights, own)
    try:
        if own is not None:
            made.step_all({name: np.ones_like(weights[name]) for name in structure.trained}, job.learning_rate)
    except PluginFailed as error:
        raise PluginError(f"{error} in a trial") from error


def _find(section: AnyOptimiser) -> type[torch.optim.Optimizer]:
    try:
        return find_torch_optimiser(section.name)
    except ModelError as error:
        raise ConfigurationError(f"{section.key}.name: {error}") from error


def _arguments(section: AnyOptimiser, momentum: float) -> dict[str, Any]:
    if "lr" in section.arguments:
        raise ConfigurationError(f"{section.options_key}.lr: the rate is the job's own key; set learning_rate")
    return ({"momentum": momentum} if section.name.lower() == "sgd" else {}) | dict(section.arguments)


def _make(
    section: AnyOptimiser,
    own: Plugin | None,
    parameters: Sequence[torch.Tensor],
    arguments: Mapping[str, Any],
    learning_rate: float,
) -> torch.optim.Optimizer:
    if own is not None:
        try:
            return make_torch_optimiser(own.target, parameters, arguments, learning_rate)
        except user_errors() as error:
            told = f"{own}: making it with {dict(section.arguments)} failed: {describe_error(error)}"
            raise PluginError(told) from error
    kind = _find(section)
    known = [name for name in inspect.signature(kind).parameters if name not in ("params", "lr")]
    for key in arguments:
        if key not in known:
            hint = hint_at(key, known, f"there are: {', '.join(known)}")
            raise ConfigurationError(f"{section.options_key}.{key}: {kind.__name__} does not take it; {hint}")
    try:
        return make_torch_optimiser(kind, parameters, arguments, learning_rate)
    except (TypeError, ValueError, RuntimeError, LookupError, AttributeError) as error:
        raise ConfigurationError(f"{section.key}: torch.optim.{kind.__name__} refuses this: {error}") from error


def _reason(name: str, apart: bool, clip_norm: float | None) -> str | None:
    if not apart:
        return f"whether {name} steps each tensor by itself is not known"
    return None if clip_norm is None else "clip_norm needs the norm of the whole gradient"


def _step_once(optimiser: torch.optim.Optimizer, learning_rate: float) -> None:
    """Step what has a gradient, and drop the gradients."""
    for group in optimiser.param_groups:
        group["lr"] = learning_rate
    optimiser.step()
    optimiser.zero_grad()


def _views(parameter: torch.Tensor, block_bytes: int | None) -> dict[int, torch.Tensor]:
    """Return a parameter's blocks by their first byte: flat views, or the parameter itself if it is one block."""
    edges = item_blocks(parameter.numel(), parameter.element_size(), block_bytes)
    if len(edges) == 1:
        return {0: parameter}
    flat, item = parameter.view(-1), parameter.element_size()
    return {start: flat[start // item : end // item] for start, end in edges}


def _split(gradient: torch.Tensor, views: Collection[torch.Tensor]) -> Sequence[torch.Tensor]:
    if len(views) == 1:
        return [gradient]
    return torch.split(gradient.reshape(-1), [view.numel() for view in views])


def _alike(states: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether blocks with these states have taken the same steps."""
    first = states[0]
    return all(
        state.keys() == first.keys()
        and all(
            bool(state[key] == value) for key, value in first.items() if not (torch.is_tensor(value) and value.ndim)
        )
        for state in states[1:]
    )


def _together(states: Sequence[Mapping[str, Any]], shape: torch.Size) -> Mapping[str, Any]:
    """Return a tensor's state; what has no dimension is the same in all of its blocks."""
    if len(states) == 1:
        return states[0]
    return {
        key: torch.cat([state[key] for state in states]).view(shape) if torch.is_tensor(value) and value.ndim else value
        for key, value in states[0].items()
    }


def _written(state: Mapping[str, Any]) -> Iterator[tuple[str, str, Array]]:
    """Yield kind, key and array of each entry of a state.

    Raises:
        ConfigurationError: one is neither tensor nor number.
    """
    for key, value in state.items():
        kind = "tensor" if isinstance(value, torch.Tensor) else type(value).__name__
        if isinstance(value, torch.Tensor):
            yield kind, key, value.detach().numpy()
        elif kind in _NUMBERS:
            yield kind, key, np.asarray(value)
        elif value is not None:
            raise ConfigurationError(f"optimizer: cannot write down {key}, a {kind}, in a checkpoint; choose another")


def _square(gradient: Array) -> float:
    flat = gradient.reshape(-1).astype(np.float64)
    return float(flat @ flat)


@dataclass(frozen=True)
class TrainedModel:
    """A model, which of its tensors are what, and what steps it.

    Attributes:
        weights: parameters and buffers by name; trained parameters share their memory with the optimiser.
        structure: which of them are what.
        optimiser: of the parameters.
        sums: that the devices add up in a step, with batch normalisation over all of them; none otherwise.
    """

    weights: dict[str, Array]
    structure: Structure
    optimiser: HostOptimiser
    sums: Sequence[NormSum] = ()

    def copy_tied(self) -> None:
        """Have tied parameters under their further names be what they are under their first."""
        for name, first in self.structure.tied.items():
            self.weights[name][...] = self.weights[first]
