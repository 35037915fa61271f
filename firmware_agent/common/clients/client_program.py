"""A client program: loaded, run for a round, and what it returned, checked."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from firmware_agent.common.clients.built_in_clients import ADAPTERS, CLIENTS, GIVEN
from firmware_agent.common.clients.client_round import ClientRound, Setting, to_array
from firmware_agent.common.clients.confinement import announce_writers, confined, import_ahead
from firmware_agent.common.errors import ModelError
from firmware_agent.common.frames.session_frames import Job, Train
from firmware_agent.common.imports import adapt
from firmware_agent.common.shipped_code import ShippedCode, make_code
from firmware_agent.common.slices import Array
from firmware_agent.common.weights import state_arrays

EXTRA, STATE = "extra/", "state/"
"""How tensors are called on the wire that are none of the model's: those of the algorithm, and the drive's state."""
MOST_METRICS = 64
# State that a drive may keep, and the host a copy of: so many times the model, or so many bytes, whichever is more.
_STATE_MODELS, _STATE_BYTES = 4, 64 << 20


class ClientReply(NamedTuple):
    """What a client program returned.

    Attributes:
        weights: those of the model's that it returned; all of them if it returned no tensor at all.
        extras: its further tensors.
        metrics: its numbers.
    """

    weights: dict[str, Array]
    extras: dict[str, Array]
    metrics: dict[str, float]

    @property
    def arrays(self) -> dict[str, Array]:
        """Name on the wire -> array."""
        return self.weights | {EXTRA + name: array for name, array in self.extras.items()}


@dataclass(frozen=True)
class ClientProgram:
    """A program of the user's or a built-in one.

    Attributes:
        name: as the job has it.
        call: takes `GIVEN` by name.
        accepts: which of them it takes.
    """

    name: str
    call: Callable[..., Any]
    accepts: frozenset[str]

    @classmethod
    def load(cls, code: ShippedCode) -> ClientProgram:
        """Return the program that a job names.

        Raises:
            ModelError: it cannot be imported or made, or takes an argument that nobody gives.
        """
        announce_writers()
        call = adapt(make_code("client", code, CLIENTS), ADAPTERS)
        if ":" in code.name:
            import_ahead(code.source)
        try:
            parameters = inspect.signature(call).parameters.values()
        except (TypeError, ValueError) as error:
            raise ModelError(
                f"client {code.name!r}: its signature cannot be read ({error}); name a function"
            ) from error
        named = {each.name for each in parameters if each.kind is not each.VAR_KEYWORD}
        if any(each.kind is each.VAR_KEYWORD for each in parameters):
            return cls(code.name, call, frozenset(GIVEN))
        missing = [e.name for e in parameters if e.default is e.empty and e.name not in GIVEN]
        if missing:
            told = f"takes {missing[0]!r}, which is neither given nor an option of the job"
            raise ModelError(f"client {code.name!r}: {told}; given are {', '.join(GIVEN)}")
        return cls(code.name, call, frozenset(named & GIVEN.keys()))

    def run(
        self,
        client_round: ClientRound,
        config: Mapping[str, Setting],
        received: Mapping[str, Array],
        state: MutableMapping[str, Any],
    ) -> ClientReply:
        """Have the program train; `state` is changed by it.

        Raises:
            ModelError: it returned something else than tensors and numbers by name, or too many bytes.
            PermissionError: it did what it may not (see `firmware_agent.common.clients.confinement`).
            BaseException: what it raised.
        """
        model = client_round.model
        given = {
            "model": model,
            "loader": client_round.loader,
            "config": dict(config),
            "received": {name: torch.from_numpy(np.array(array)) for name, array in received.items()},
            "state": state,
            "csd": client_round,
        }
        with confined():
            returned = self.call(**{name: given[name] for name in given if name in self.accepts})
        return self._read(returned, model)

    def state_arrays(self, state: Mapping[str, Any], model: nn.Module) -> dict[str, Array]:
        """Return the state that the program keeps, as arrays.

        Raises:
            ModelError: it is more than a drive may keep, or no numbers.
        """
        arrays = {self._named(name): to_array(f"client {self.name!r}", name, value) for name, value in state.items()}
        self._bound("keeps", "in state", arrays, state_arrays(model))
        return arrays

    def _bound(self, does: str, where: str, arrays: Mapping[str, Array], weights: Mapping[str, Array]) -> None:
        size_bytes, most_bytes = sum(each.nbytes for each in arrays.values()), most_state_bytes(weights)
        if size_bytes > most_bytes:
            raise ModelError(
                f"client {self.name!r}: {does} {size_bytes} bytes {where}, at most {most_bytes} are taken: "
                f"{_STATE_MODELS} times the model, or {_STATE_BYTES}; make it less"
            )

    def _read(self, returned: object, model: nn.Module) -> ClientReply:
        if returned is not None and not isinstance(returned, Mapping):
            raise ModelError(
                f"client {self.name!r}: returned {type(returned).__name__}; return a mapping of names to tensors and "
                "numbers, or nothing: then the model's weights are returned"
            )
        own, found = state_arrays(model), dict(returned or {})
        metrics = {self._named(n): self._number(n, v) for n, v in found.items() if isinstance(v, numbers.Real)}
        if len(metrics) > MOST_METRICS:
            raise ModelError(f"client {self.name!r}: returned {len(metrics)} numbers; at most {MOST_METRICS} are taken")
        arrays = {self._named(n): to_array(f"client {self.name!r}", n, v) for n, v in found.items() if n not in metrics}
        weights = {name: self._like(name, arrays.pop(name), own[name]) for name in own if name in arrays}
        self._bound("returned", "beside the weights", arrays, own)
        return ClientReply(weights if found.keys() - metrics else own, arrays, metrics)

    def _named(self, name: object) -> str:
        if not isinstance(name, str) or not 1 <= len(name) <= 200:
            raise ModelError(f"client {self.name!r}: {name!r} is no name; use text of at most 200 characters")
        return name

    def _number(self, name: str, value: Any) -> float:
        if name != "loss" and not math.isfinite(value):
            raise ModelError(f"client {self.name!r}: returned {name} = {value}; return finite numbers")
        return float(value)

    def _like(self, name: str, array: Array, own: Array) -> Array:
        if array.shape != own.shape or (array.dtype.kind == "f") != (own.dtype.kind == "f"):
            told = f"returned {name} as {array.dtype}{list(array.shape)}, the model has {own.dtype}{list(own.shape)}"
            raise ModelError(f"client {self.name!r}: {told}; call what is no weight otherwise")
        return array.astype(own.dtype, copy=False)


def most_state_bytes(weights: Mapping[str, Array]) -> int:
    """Return how much state a client program may keep in a drive, of a model with these weights and buffers."""
    return max(_STATE_BYTES, _STATE_MODELS * sum(array.nbytes for array in weights.values()))


def round_config(job: Job, task: Train) -> dict[str, Setting]:
    """Return what a client program gets as its configuration: the job's settings, and those of the strategy."""
    sgd, rate = job.optimiser, job.learning_rate if task.learning_rate is None else task.learning_rate
    settings: dict[str, Any] = {
        "learning_rate": rate,
        "momentum": job.momentum if sgd is None else sgd.arguments.get("momentum", 0.0),
        "batch_size": job.batch_size,
    }
    return {**settings, "epochs": task.epochs, "round": task.round, **task.config}
