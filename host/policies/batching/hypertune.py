"""HyperTune for one array: watches its devices, and says when which of them gets another batch. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from firmware_agent.common.errors import ConfigurationError, DeviceError
from host.config.plugins.kinds import TUNER
from host.core.tuning.batch_tuner import Batches, Floats, Retune
from host.core.tuning.speed_table import SpeedTable
from host.policies.batching.detector import Flags
from host.policies.batching.hypertune_rule import RetuneDecision, Retuner
from host.policies.batching.retune_rules import RetuneRules


@TUNER.register("hypertune", "Batches of `stannis`, kept right while devices become slower and faster.")
class HyperTune:
    """A `host.core.tuning.batch_tuner.BatchTuner`. The same observations lead to the same retunes."""

    def __init__(
        self,
        tables: Sequence[SpeedTable],
        batches: Batches,
        tuning_rules: RetuneRules | None = None,
        total_steps: int | None = None,
        sync_seconds: float = 0.0,
        names: Sequence[str] | None = None,
        shares_records: bool = False,
    ) -> None:
        """Begin with a plan.

        Args:
            tables: of each device, in participant order; devices of a class share one.
            batches: (devices,) of the plan.
            tuning_rules: when a retune is made.
            total_steps: of the run; None if nobody knows.
            sync_seconds: what the exchange adds to each step.
            names: of the devices, for people.
            shares_records: whether one device may take over what another one is too slow for; if not, none gets more
                than its batch of the plan. The step never has more records than the plan's.

        Raises:
            ConfigurationError: there is no device, a batch does not fit, or the lengths differ.
        """
        first = np.asarray(batches, dtype=np.int64)
        if not len(tables) or first.shape != (len(tables),) or not first.any():
            raise ConfigurationError(
                f"HyperTune has {len(tables)} speed tables and {first.size} batches; give each device both"
            )
        for table, batch in zip(tables, first, strict=True):
            table.seconds(int(batch))
        self._names = list(names) if names is not None else [f"device {number}" for number in range(len(tables))]
        self._rules, self._initial = tuning_rules or RetuneRules(), first
        self._retuner = Retuner(tables, first, self._rules, total_steps, sync_seconds, shares_records=shares_records)

    @property
    def batches(self) -> Batches:
        """(devices,) records per step as of now; 0 for a device that is parked or gone."""
        return np.asarray(self._retuner.batches[0].copy())

    @property
    def slowdowns(self) -> Floats:
        """(devices,) observed over expected seconds of the same batch, as believed now."""
        return np.asarray(self._retuner.slowdowns[0])

    @property
    def expected_seconds(self) -> Floats:
        """(devices,) believed compute seconds of the present batches; 0 for a batch of 0."""
        return np.asarray(self._retuner.expected_seconds[0])

    def probes(self, step: int) -> Batches:
        """Return (devices,) records that parked devices should compute beside this step.

        Nobody waits for them and their gradients are dropped; `observe` takes their seconds, which is how a parked
        device's recovery is seen.
        """
        return np.asarray(self._retuner.probes(step)[0])

    def observe(self, step: int, compute_seconds: Floats, steps_left: int | None = None) -> Retune | None:
        """Take what a step cost, and return new batches if they are worth it (see `BatchTuner.observe`).

        Args:
            step: its number, from 1.
            compute_seconds: (devices,); of a parked device those of its probe. Also those of devices that were late.
            steps_left: of the run, if batches stay; None for what it was made with.

        Raises:
            DeviceError: one is zero, negative or infinite; nothing has changed.
        """
        seconds = np.asarray(compute_seconds, dtype=np.float64)
        wrong = np.flatnonzero((seconds <= 0) | np.isinf(seconds))
        if seconds.shape != self._initial.shape:
            raise DeviceError(
                f"step {step} has {seconds.size} devices' seconds, the array {len(self._initial)} devices"
            )
        if len(wrong):
            name, value = self._names[wrong[0]], seconds[wrong[0]]
            raise DeviceError(
                f"{name}: says that its part of step {step} took {value:g} s; a device's clock cannot stand still, run "
                "backwards or never end, so restart it"
            )
        if steps_left is not None:
            self._retuner.total_steps = step + steps_left
        decided = self._retuner.observe(step, seconds[None])
        return self._retune(decided[0], step) if decided else None

    def leave(self, device: int) -> Retune:
        """Remove a device; the others keep their batches, and the step continues without it."""
        return self._member(device, self._retuner.leave, "left")

    def join(self, device: int) -> Retune:
        """Note that a device is back: it gets its first batch, and its table's speed until it is observed."""
        return self._member(device, self._retuner.join, "is back")

    def possible_records_per_second(self) -> float:
        """Return what the believed speeds allow by compute alone, with the batches that it may choose.

        None is larger than at the start, or than what it may take over; no step has more records than the plan's.
        """
        return self._retuner.best_rate(0)

    def state(self) -> dict[str, Any]:
        """Return all that it has learnt, for a checkpoint: JSON's types."""
        return self._retuner.dump()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take what `state` returned, of an array with the same devices.

        Raises:
            ConfigurationError: it is of another array.
        """
        if len(state["batches"]) != len(self._initial):
            raise ConfigurationError(
                f"the tuner's state is of {len(state['batches'])} devices, the array has {len(self._initial)}; "
                "resume with the array of the run"
            )
        self._retuner.load(state)

    def _member(self, device: int, act: Callable[[Flags], None], verb: str) -> Retune:
        if not 0 <= device < len(self._initial):
            raise ConfigurationError(f"device {device} is not between 0 and {len(self._initial) - 1}")
        which = np.zeros((1, len(self._initial)), dtype=np.bool_)
        which[0, device], before = True, self.batches
        act(which)
        changed = {device, *np.flatnonzero(self.batches != before).tolist()}
        return Retune(self.batches, tuple(sorted(changed)), self.slowdowns, f"{self._names[device]} {verb}", 0.0)

    def _retune(self, decision: RetuneDecision, step: int) -> Retune:
        changed = np.flatnonzero(decision.before != decision.after)
        slowdowns = self.slowdowns
        parts = [
            f"{self._names[number]} {_pace(float(slowdowns[number]))}, "
            + (
                f"{decision.before[number]:.0f} to {decision.after[number]:.0f} records"
                if decision.after[number]
                else f"parked (had {decision.before[number]:.0f} records)"
            )
            for number in changed
        ]
        reason = f"seen in step {step}: " + "; ".join(parts)
        return Retune(decision.after.copy(), tuple(map(int, changed)), slowdowns, reason, decision.gain_steps)


def _pace(slowdown: float) -> str:
    if slowdown == 1:
        return "is as fast as its table"
    return f"takes {slowdown:.2f} times its table's seconds"
