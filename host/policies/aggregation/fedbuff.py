"""FedBuff: asynchronous rounds. The host steps when a few updates have come, and slow drives hold nobody up."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le

from firmware_agent.common.slices import Array
from host.config.plugins.kinds import STRATEGY
from host.core.tensor_sums import weighted_mean
from host.policies.aggregation.strategy import Contribution, DriveHistory, PlainStrategy, check_count, check_names

_CLOCK, _PENDING = "clock", "pending/"


@dataclass(frozen=True)
class PendingUpdate:
    """A drive's update that no step has taken yet.

    Attributes:
        done_seconds: when it reaches the host, in the array's time since the run began.
        device: whose it is.
        step: of the host, from 0, from whose weights it began.
        samples: its weight in means of what is not trained.
        change: name -> how far a trained parameter has moved, or the value of anything else.
    """

    done_seconds: float
    device: str
    step: int
    samples: int
    change: Mapping[str, Array]


@STRATEGY.register(
    "fedbuff", "Asynchronous: the host steps when `buffer` updates have come; nobody waits for the slow."
)
class FedBuff(PlainStrategy):
    """Nguyen et al., "Federated learning with buffered asynchronous aggregation" (AISTATS 2022), Algorithm 1.

    A round is a step of the host, from the K = `buffer` updates that come first in the array's time:

        ``w <- w + learning_rate / K sum_i Delta_i / sqrt(1 + tau_i)``,

    with tau_i the steps that the host has taken since drive i began. Drives whose update was taken begin anew with the
    new weights, all others go on. So who comes first is decided by device time, and the same on every machine; a drive
    is busy from one step to the next, where the paper samples another one as soon as it is done. If drives are lost, so
    that fewer than K updates can come, a step is the mean of those.
    """

    def __init__(
        self,
        buffer: Annotated[int, Ge(1), Le(10_000)] = 2,
        learning_rate: Annotated[float, Gt(0), Le(100)] = 1.0,
        *,
        parameters: Collection[str],
    ) -> None:
        """Step `parameters` by every `buffer` updates."""
        self.buffer, self._learning_rate, self._parameters = buffer, learning_rate, frozenset(parameters)
        self._now_seconds, self._step = 0.0, 0
        self._pending: list[PendingUpdate] = []
        self._staleness = 0.0

    def configure(self, _: int, drives: Mapping[str, DriveHistory]) -> dict[str, dict[str, Array]]:
        """Ask the chosen drives that are not at work, else as many others; drives at work if there is no other."""
        busy = {each.device for each in self._pending}
        idle = [device for device in drives if device not in busy]
        chosen = [device for device in drives if drives[device].chosen]
        return {device: {} for device in [each for each in idle if each in chosen] or idle[: len(chosen)] or chosen}

    def round_seconds(self, finish_seconds: Mapping[str, float]) -> float:
        """Return how long a round takes whose drives are done after so many seconds: up to the last that is taken."""
        arrivals = [each.done_seconds - self._now_seconds for each in self._pending]
        return sorted([*arrivals, *finish_seconds.values()])[: self.buffer][-1]

    def aggregate(self, global_weights: Mapping[str, Array], contributions: Sequence[Contribution]) -> dict[str, Array]:
        """Return the weights after a step (see `Strategy.aggregate`)."""
        check_count(self, contributions)
        waiting = [*self._pending, *(self._update(global_weights, part) for part in contributions)]
        waiting.sort(key=lambda each: (each.done_seconds, each.device))
        taken, self._pending = waiting[: self.buffer], waiting[self.buffer :]
        stale = [self._step - each.step for each in taken]
        self._now_seconds, self._step = taken[-1].done_seconds, self._step + 1
        self._staleness = float(np.mean(stale))
        new = weighted_mean(
            [(e.samples, {n: a for n, a in e.change.items() if n not in self._parameters}) for e in taken]
        )
        for name, before in global_weights.items():
            if name in self._parameters:
                steps = [each.change[name] / np.sqrt(1 + tau) for each, tau in zip(taken, stale, strict=True)]
                new[name] = np.asarray(before + self._learning_rate * np.mean(steps, axis=0), before.dtype)
        return {name: new[name] for name in global_weights}

    def evaluate(self, _: int, weights: Mapping[str, Array]) -> dict[str, float]:
        """Return how stale the updates of the last step were, in the mean, and how many drives are at work."""
        return {"staleness": self._staleness, "in_flight": float(len(self._pending))}

    def state(self) -> dict[str, Array]:
        """Return the updates that wait, and where the clock stands."""
        state: dict[str, Array] = {_CLOCK: np.array([self._now_seconds, self._step])}
        for number, each in enumerate(self._pending):
            head = f"{_PENDING}{number}/{each.device}/"
            state[head] = np.array([each.done_seconds, each.step, each.samples])
            state |= {head + name: array for name, array in each.change.items()}
        return state

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go on with these (see `Strategy.load_state`)."""
        found: dict[str, dict[str, Array]] = {}
        for key, array in state.items():
            if key.startswith(_PENDING):
                number, device, name = key.removeprefix(_PENDING).split("/", 2)
                found.setdefault(f"{int(number):06}/{device}", {})[name] = array
        check_names({key: array for key, array in state.items() if not key.startswith(_PENDING)}, {_CLOCK})
        self._now_seconds, self._step = float(state[_CLOCK][0]), int(state[_CLOCK][1])
        self._pending = []
        for head, change in sorted(found.items()):
            done_seconds, step, samples = change.pop("")
            update = PendingUpdate(float(done_seconds), head.partition("/")[2], int(step), int(samples), change)
            self._pending.append(update)

    def _update(self, start: Mapping[str, Array], part: Contribution) -> PendingUpdate:
        change: dict[str, Array] = {
            name: after - start[name].astype(np.float64) if name in self._parameters else after.copy()
            for name, after in part.weights.items()
        }
        return PendingUpdate(self._now_seconds + part.finish_seconds, part.device, self._step, part.samples, change)
