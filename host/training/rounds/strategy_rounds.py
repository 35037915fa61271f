"""A strategy in federated rounds: whom it asks, the contributions that it sees, what it knows of drives."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from firmware_agent.common.clients.client_program import EXTRA, MOST_METRICS
from firmware_agent.common.errors import PluginFailed
from firmware_agent.common.slices import Array
from host.config.participation import RoundSelection
from host.core.records import DeviceRound
from host.policies.aggregation import Contribution, Directions, DriveHistory, FirstRound, Strategy
from host.training.rounds.client_contract import Instruction, read_instructions
from host.training.rounds.client_figures import name_figures
from host.training.rounds.drive_meeting import Brought
from host.training.rounds.round_answer import RoundAnswer

_CLIENTS = "client states/"


class StrategyRounds:
    """A strategy as rounds use it, with what it may know of drives from the rounds before.

    Attributes:
        strategy: itself.
        name: as the job has it.
        plans: whether it says whom to ask.
        directions: watches whose updates point away, of a strategy that leaves drives out, so that its weights tell it.
    """

    def __init__(self, strategy: Strategy, name: str, parameters: Collection[str] = ()) -> None:
        """Begin without a round; `parameters` are the tensors that are trained."""
        self.strategy, self.name, self.plans = strategy, name, hasattr(strategy, "configure")
        self.directions = Directions(parameters) if strategy.least_contributions > 1 else None
        self._last: dict[str, tuple[int, float, float, float]] = {}

    def first_weights(self, start: FirstRound) -> dict[str, Array]:
        """Return the weights of the first round: the strategy's, or the job's.

        Raises:
            PluginFailed: a strategy of the user's own failed.
        """
        choose: Any = getattr(self.strategy, "first_weights", None)
        return dict(start.weights) if choose is None else cast("dict[str, Array]", choose(start))

    def plan(
        self, number: int, devices: Sequence[str], choice: RoundSelection, samples: Mapping[str, int], has_client: bool
    ) -> tuple[RoundSelection, dict[str, Instruction]]:
        """Return whom a round asks, and what the strategy says to each of them; nobody stands in for them.

        Args:
            number: of the round.
            devices: all of the array.
            choice: by the job's participation.
            samples: device -> records, of those that are there.
            has_client: whether a client program hears what is said.

        Raises:
            PluginFailed: a strategy of the user's own failed, or says what cannot be.
        """
        if (configure := getattr(self.strategy, "configure", None)) is None:
            return choice, {}
        there = [device for device in devices if device in samples] or list(devices)
        absent = tuple(device for device in choice.chosen if device not in there)
        chosen = set(choice.chosen).difference(absent)
        if not chosen:  # as without a strategy that chooses, others stand in
            chosen.update([device for device in choice.reserves if device in there][: len(choice.chosen)])
        nothing = 0, math.nan, math.nan, math.nan
        drives = {
            device: DriveHistory(device, samples.get(device, 0), device in chosen, *self._last.get(device, nothing))
            for device in there
        }
        said = read_instructions(configure(number, drives), there, self.name, has_client)
        return RoundSelection((*said, *(device for device in absent if device not in said)), ()), said

    def exchange(self, number: int, exchange: int, brought: Brought) -> Brought:
        """Return device -> name -> array, what the strategy answers to an exchange within a round.

        Raises:
            PluginFailed: a strategy of the user's own failed, or answers something else.
        """
        answered = self.strategy.exchange(number, exchange, brought)  # type: ignore[attr-defined]  # has been tried
        said = read_instructions(answered, list(brought), self.name, has_client=True, method="exchange")
        if bad := [device for device in brought if device not in said or said[device].config]:
            told = f"exchange does not answer {bad[0]} with arrays alone; return drive -> name -> array for all drives"
            raise PluginFailed(f"strategy {self.name!r}: {told}", "strategy")
        return {device: each.tensors for device, each in said.items()}

    def note(self, contributions: Iterable[Contribution]) -> None:
        """Take in a round."""
        for part in contributions:
            rounds = 1 + self._last.get(part.device, (0, 0.0, 0.0, 0.0))[0]
            self._last[part.device] = rounds, math.fsum(part.seconds.values()), part.joules, part.loss

    def metrics(
        self, number: int, weights: Mapping[str, Array], contributions: Collection[Contribution]
    ) -> dict[str, float]:
        """Return what client programs returned, as ``train_NAME``, and what the strategy says of the new weights.

        Raises:
            PluginFailed: a strategy of the user's own failed.
        """
        found = mean_metrics(contributions)
        if (evaluate := getattr(self.strategy, "evaluate", None)) is not None:
            found |= _read_metrics(evaluate(number, weights), self.name)
        return found

    def state(self) -> dict[str, list[float]]:
        """Return what must be kept to go on: JSON's types; nothing if nobody asks for it."""
        return {device: list(last) for device, last in self._last.items()} if self.plans else {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`; of nothing, from nothing."""
        self._last = {
            device: (int(last[0]), float(last[1]), float(last[2]), float(last[3])) for device, last in state.items()
        }


def make_contribution(
    sent: Mapping[str, Array], answer: RoundAnswer, samples: int, part: DeviceRound, finish_seconds: float
) -> Contribution:
    """Return what a drive adds to a round.

    Args:
        sent: the weights that it was sent; those that it did not return are taken from here.
        answer: what it returned.
        samples: its weight in the mean.
        part: its time and energy.
        finish_seconds: from the round's beginning until the host had it.
    """
    extras = {name.removeprefix(EXTRA): array for name, array in answer.weights.items() if name.startswith(EXTRA)}
    weights = {name: answer.weights.get(name, array) for name, array in sent.items()}
    seconds = {name: getattr(part.device_seconds, name) for name in part.device_seconds.__struct_fields__}
    return Contribution(
        *(weights, samples, part.steps, part.device, extras, answer.returned.trained.metrics, part.loss, seconds),
        *(math.fsum(part.energy_joules.values()), part.sent_bytes, part.received_bytes, finish_seconds),
    )


def mean_metrics(contributions: Collection[Contribution]) -> dict[str, float]:
    """Return ``train_NAME`` -> the mean, weighted by samples, of what client programs returned in this round."""
    names = name_figures([name for name in part.metrics if name != "loss"] for part in contributions)
    found = {}
    for name, called in names.items():
        told = [(part.samples, part.metrics[name]) for part in contributions if name in part.metrics]
        total = sum(samples for samples, _ in told)
        found[called] = sum(samples * value for samples, value in told) / total if total else math.nan
    return found


def _read_metrics(found: object, strategy: str) -> dict[str, float]:
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
