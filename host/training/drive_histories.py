"""Contributions of drives as strategies see them, and what is kept of each drive from round to round."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from firmware_agent.common.clients.client_program import EXTRA, MOST_METRICS
from firmware_agent.common.errors import PluginFailed
from firmware_agent.common.slices import Array
from host.core.records import DeviceRound
from host.policies.aggregation import Contribution, DriveHistory
from host.training.round_exchange import RoundAnswer

_CLIENTS = "clients/"


class DriveHistories:
    """What strategies know of drives from the rounds before."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._last: dict[str, tuple[int, float, float, float]] = {}

    def of(self, device: str, samples: int, chosen: bool) -> DriveHistory:
        """Return what is known of a drive with so many records."""
        return DriveHistory(device, samples, chosen, *self._last.get(device, (0, math.nan, math.nan, math.nan)))

    def note(self, contributions: Iterable[Contribution]) -> None:
        """Take in a round."""
        for part in contributions:
            rounds = 1 + self._last.get(part.device, (0, 0.0, 0.0, 0.0))[0]
            self._last[part.device] = rounds, math.fsum(part.seconds.values()), part.joules, part.loss

    def state(self) -> dict[str, list[float]]:
        """Return what must be kept to go on: JSON's types."""
        return {device: list(last) for device, last in self._last.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`; of nothing, from nothing."""
        self._last = {device: (int(last[0]), *map(float, last[1:4])) for device, last in state.items()}  # type: ignore[misc]


def make_contribution(sent: Mapping[str, Array], answer: RoundAnswer, samples: int, part: DeviceRound) -> Contribution:
    """Return what a drive adds to a round.

    Args:
        sent: the weights that it was sent; those that it did not return are taken from here.
        answer: what it returned.
        samples: its weight in the mean.
        part: its time and energy.
    """
    extras = {name.removeprefix(EXTRA): array for name, array in answer.weights.items() if name.startswith(EXTRA)}
    weights = {name: answer.weights.get(name, array) for name, array in sent.items()}
    seconds = {name: getattr(part.device_seconds, name) for name in part.device_seconds.__struct_fields__}
    return Contribution(
        *(weights, samples, part.steps, part.device, extras, answer.returned.trained.metrics, part.loss, seconds),
        *(math.fsum(part.energy_joules.values()), part.sent_bytes, part.received_bytes),
    )


def mean_metrics(contributions: Collection[Contribution]) -> dict[str, float]:
    """Return ``train_NAME`` -> the mean, weighted by samples, of what client programs returned in this round."""
    names = dict.fromkeys(name for part in contributions for name in part.metrics if name != "loss")
    found = {}
    for name in names:
        told = [(part.samples, part.metrics[name]) for part in contributions if name in part.metrics]
        total = sum(samples for samples, _ in told)
        found[f"train_{name}"] = sum(samples * value for samples, value in told) / total if total else math.nan
    return found


def read_metrics(found: object, strategy: str) -> dict[str, float]:
    """Return what a strategy's `evaluate` returned.

    Raises:
        PluginFailed: it is no mapping of names to numbers.
    """
    if not isinstance(found, Mapping) or len(found) > MOST_METRICS:
        told = f"{len(found)} entries" if isinstance(found, Mapping) else type(found).__name__
        raise PluginFailed(f"strategy {strategy!r}: evaluate returned {told}; return name -> number", "strategy")
    try:
        return {str(name): float(value) for name, value in found.items()}
    except (TypeError, ValueError) as error:
        raise PluginFailed(f"strategy {strategy!r}: evaluate returned no numbers ({error})", "strategy") from error


def flatten_states(states: Mapping[str, Mapping[str, Array]]) -> dict[str, Array]:
    """Return the state of each drive's client program under names for a checkpoint; see `split_states`."""
    return {f"{_CLIENTS}{device}/{name}": array for device, kept in states.items() for name, array in kept.items()}


def split_states(kept: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, dict[str, Array]]]:
    """Return the tensors that `flatten_states` has not named, and device -> state."""
    rest, states = dict[str, Array](), dict[str, dict[str, Array]]()
    for name, array in kept.items():
        if name.startswith(_CLIENTS):
            device, _, key = name.removeprefix(_CLIENTS).partition("/")
            states.setdefault(device, {})[key] = array
        else:
            rest[name] = array
    return rest, states
