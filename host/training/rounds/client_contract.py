"""What the drives of a job are asked beyond plain local training, and what they then return."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from firmware_agent.common.clients.client_program import EXTRA, STATE, most_state_bytes
from firmware_agent.common.clients.client_round import EXCHANGED
from firmware_agent.common.errors import PluginFailed, ProtocolError
from firmware_agent.common.frames.frame_fields import MAX_FACTS, TensorSpec
from firmware_agent.common.frames.session_frames import Code, Job, Tensors, Train
from firmware_agent.common.slices import Array, cut_slices, spec_bytes, tensor_specs
from firmware_agent.common.wire import encode, pack

# What a strategy may say to any drive: with it, its least and its most.
_SETTINGS = {"epochs": (1, 10_000), "batch_size": (1, 65_536), "learning_rate": (0, 100)}
_MOST_TEXT, _MOST_WHOLE = 1 << 12, 1 << 63


@dataclass(frozen=True)
class ClientContract:
    """A job's client program, and what a trial on the host has shown that it returns.

    Attributes:
        code: names it.
        returns: name on the wire, dtype and shape of each tensor.
        metrics: names of its numbers.
        exchanges: tensors of an exchange within a round, as on the wire; none if it asks for none.
    """

    code: Code
    returns: tuple[TensorSpec, ...]
    metrics: tuple[str, ...] = ()
    exchanges: tuple[TensorSpec, ...] = ()

    @classmethod
    def of(cls, frame: Job) -> ClientContract | None:
        """Return that of a job; None if drives train by themselves."""
        if frame.client is None:
            return None
        return cls(frame.client, tuple(frame.returns), tuple(frame.metrics), tuple(frame.exchanges))

    def added_to(self, frame: Job) -> Job:
        """Return the frame of a job in which the program trains."""
        told = {name: list(getattr(self, name)) for name in ("returns", "metrics", "exchanges")}
        return msgspec.structs.replace(frame, client=self.code, **told)

    def believed(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return those of a drive's numbers that it may return, and that are finite."""
        return {name: metrics[name] for name in self.metrics if math.isfinite(metrics.get(name, math.nan))}

    def expected(self, announced: Sequence[TensorSpec], weights: Mapping[str, Array]) -> list[TensorSpec]:
        """Return the tensors that a drive may return which was sent these weights, and announces these tensors.

        Raises:
            ProtocolError: it keeps too much state.
        """
        if self.exchanges and announced and announced[0].name.startswith(EXCHANGED):
            return list(self.exchanges)
        state = [spec for spec in announced if spec.name.startswith(STATE)]
        size_bytes, most_bytes = sum(map(spec_bytes, state)), most_state_bytes(weights)
        if size_bytes > most_bytes:
            raise ProtocolError(f"returned {size_bytes} bytes of state, at most {most_bytes} are taken")
        return [*self.returns, *state]


@dataclass(frozen=True)
class Instruction:
    """What a strategy says to a drive before a round.

    Attributes:
        config: name -> number or text.
        tensors: name -> array.
    """

    config: Mapping[str, int | float | str | bool] = field(default_factory=dict)
    tensors: Mapping[str, Array] = field(default_factory=dict)

    def epochs(self, usual: int) -> int:
        """Return how often a drive passes over its shard."""
        return int(self.config.get("epochs", usual))

    def batch_size(self, usual: int) -> int:
        """Return how many records a step of it has."""
        return int(self.config.get("batch_size", usual))


AS_USUAL = Instruction()


def read_instructions(
    returned: object, devices: Sequence[str], strategy: str, has_client: bool, method: str = "configure"
) -> dict[str, Instruction]:
    """Return device -> instruction of what a strategy's `method` returned, in the order of `devices`.

    Raises:
        PluginFailed: it is something else, nobody is asked, or something is said that nobody hears.
    """
    where = f"strategy {strategy!r}: {method}"
    if not isinstance(returned, Mapping) or not returned:
        told = "nobody" if isinstance(returned, Mapping) else type(returned).__name__
        raise PluginFailed(f"{where} returned {told}; return drive -> {{}} for each drive that is to train", "strategy")
    if unknown := [str(each) for each in returned if each not in devices]:
        raise PluginFailed(f"{where} names {unknown[0]!r}; the drives are {', '.join(devices)}", "strategy")
    return {
        device: _read(returned[device], f"{where}, of {device}", has_client) for device in devices if device in returned
    }


def _read(said: Any, where: str, has_client: bool) -> Instruction:
    if not isinstance(said, Mapping):
        raise PluginFailed(f"{where}, returned {type(said).__name__}; return name -> number, text or array", "strategy")
    config = {name: value for name, value in said.items() if isinstance(value, bool | int | float | str | np.number)}
    tensors = {name: np.asarray(value) for name, value in said.items() if name not in config}
    for name, value in said.items():
        why = _refuse(name, value, tensors.get(name))
        if not why and not has_client and name not in _SETTINGS:
            why = f"is heard by no drive; there are {', '.join(_SETTINGS)}, all else needs a client program: client"
        if why:
            raise PluginFailed(f"{where}: {name!r} {why}", "strategy")
    if len(said) > MAX_FACTS:
        raise PluginFailed(f"{where}: {len(said)} entries; at most {MAX_FACTS} are sent", "strategy")
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in config.items()}
    return Instruction(plain, tensors)


def _refuse(name: object, value: Any, array: Array | None) -> str:
    """Return why a drive cannot be told this; empty if it can."""
    if not isinstance(name, str) or not 1 <= len(name) <= 200:
        return "is no name of 1 to 200 characters"
    if name in _SETTINGS:
        low, high = _SETTINGS[name]
        kinds = (int, np.integer) if name != "learning_rate" else (int, float, np.integer, np.floating)
        fits = isinstance(value, kinds) and not isinstance(value, bool) and low <= value <= high
        what = "number" if name == "learning_rate" else "whole number"
        return "" if fits else f"is {value!r}; make it a {what}, {low} to {high}"
    if array is None:
        if isinstance(value, str):
            return "is longer than a text may be" if len(value) > _MOST_TEXT else ""
        if isinstance(value, int | np.integer):
            return "" if abs(int(value)) < _MOST_WHOLE else "is too large a number; say it as a text"
        return "" if math.isfinite(value) else "is no finite number"
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        return f"is {array.dtype}; give numbers of at most 8 bytes"
    return "" if array.dtype.kind != "f" or np.isfinite(array).all() else "has values that are no finite numbers"


class RoundMessages:
    """The messages that carry a round's weights and task; weights are encoded once for all devices."""

    def __init__(self, weights: Mapping[str, Array], task: Train) -> None:
        """Encode the weights of a round; `task` is what a drive does that is told nothing else."""
        self._task, self._specs, number = task, tensor_specs(weights), task.round
        self._pieces = [encode(piece) for piece in cut_slices(number, weights)]
        self._usual = list(pack(self._frames(AS_USUAL, {})))

    def of(self, instruction: Instruction, state: Mapping[str, Array]) -> list[bytes]:
        """Return a device's messages.

        Args:
            instruction: of the strategy.
            state: of its client program, by name on the wire, if it has to be given it back.
        """
        if not (instruction.config or instruction.tensors or state):
            return self._usual
        return list(pack(self._frames(instruction, state)))

    def state_bytes(self, instruction: Instruction, state: Mapping[str, Array]) -> int:
        """Return what a device's state adds to its messages."""
        return sum(map(len, self.of(instruction, state))) - sum(map(len, self.of(instruction, {}))) if state else 0

    def _frames(self, instruction: Instruction, state: Mapping[str, Array]) -> Iterator[bytes]:
        more = {EXTRA + name: array for name, array in instruction.tensors.items()} | dict(state)
        config, task = instruction.config, self._task
        yield encode(Tensors(task.round, [*self._specs, *tensor_specs(more)]))
        yield from self._pieces
        yield from (encode(piece) for piece in cut_slices(task.round, more))
        rate = config.get("learning_rate", task.learning_rate)
        yield encode(
            msgspec.structs.replace(
                task,
                epochs=instruction.epochs(task.epochs),
                learning_rate=None if rate is None else float(rate),
                config=dict(config),
            )
        )


def encoded_bytes(number: int, arrays: Mapping[str, Array]) -> int:
    """Return what tensors take of an exchange: their slices, and their names among those announced."""
    announced, nothing = (len(encode(Tensors(number, specs))) for specs in (tensor_specs(arrays), []))
    return announced - nothing + sum(len(encode(piece)) for piece in cut_slices(number, arrays))
