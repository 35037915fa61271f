"""Synchronous training of unequal devices through a trace, step by step, many traces at once. Pure.

A step takes as long as its slowest participant's compute, plus the exchange: T = max_i s_i tau_i(b_i) + sync. A retune
costs so many steps of the present length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from host.tuning.allocation import Allocator
from host.tuning.base import Batches, Floats
from host.tuning.baselines import Policy
from host.tuning.detector import Flags
from host.tuning.speed import SpeedTable
from host.tuning.traces import Trace

# So many targets of a device are tried by the oracle: all of them, for any batch that fits.
_ALL_TARGETS = 1 << 16


@dataclass(frozen=True)
class Scenario:
    """An array and what its steps cost.

    Attributes:
        tables: of each device, in participant order.
        batches: (devices,) of the plan.
        sync_seconds: what the exchange adds to each step.
        cost_steps: what a retune costs, in steps of the present length.
    """

    tables: Sequence[SpeedTable]
    batches: Batches
    sync_seconds: float
    cost_steps: float


@dataclass(frozen=True)
class Outcome:
    """What came of each trace; arrays are (rows,).

    Attributes:
        records: in gradients that counted.
        seconds: of all steps and retunes.
        retune_seconds: of those, what retunes cost.
        retunes: how many there were.
        dropped: records of devices that were not waited for; they come again.
    """

    records: Floats
    seconds: Floats
    retune_seconds: Floats
    retunes: Floats
    dropped: Floats

    @property
    def rates(self) -> Floats:
        """(rows,) records per second."""
        rates: Floats = self.records / self.seconds
        return rates


def simulate(
    scenario: Scenario, traces: Sequence[Trace], policy: Policy, patience: float | None = None, charged: bool = True
) -> Outcome:
    """Let a policy train through traces of equal size, one per row of it.

    Args:
        scenario: the array.
        traces: what happens.
        policy: chooses the batches.
        patience: see `wait`; None waits for every device.
        charged: whether a retune costs anything.
    """
    allocator, rows = Allocator(scenario.tables, scenario.sync_seconds), len(traces)
    sums = np.zeros((5, rows))
    weather = np.stack([trace.slowdowns for trace in traces], axis=1)
    noise = np.stack([trace.noise for trace in traces], axis=1)
    gone = np.zeros(weather.shape[1:], dtype=np.bool_)
    for step, (slowdowns, noises) in enumerate(zip(weather, noise, strict=True), 1):
        dead = np.isnan(slowdowns)
        if (back := gone & ~dead).any():
            policy.join(back)
        seconds, length, late = _step(allocator, policy, np.where(dead, 1.0, slowdowns), dead, patience)
        probed = policy.probes(step) > 0
        seconds = np.where(probed & ~dead, allocator.table_seconds(policy.probes(step)) * slowdowns, seconds)
        taking_part = policy.batches * ~dead
        sums[0] += (taking_part * ~late).sum(axis=1)
        sums[4] += (taking_part * late).sum(axis=1)
        if (left := dead & ~gone).any():
            policy.leave(left)
        gone = dead
        retuned = policy.observe(step, np.where(seconds > 0, seconds * noises, np.nan))
        cost = scenario.cost_steps * length * retuned * charged
        sums[1:4] += np.stack([length + cost, cost, retuned])
    return Outcome(*sums)


def wait(seconds: Floats, batches: Batches, expected_seconds: Floats, patience: float | None) -> tuple[Floats, Flags]:
    """Return how long each array waits for its devices, (rows,), and which of them, (rows, devices), are late.

    The deadline is `patience` times the expected seconds of the slowest participant. At the deadline the step ends
    without those that are not there, if what is there is half of the records or more; if not, it ends when it is.

    Args:
        seconds: (rows, devices) compute seconds; 0 for one that does not take part.
        batches: (rows, devices) records of those that do, else 0.
        expected_seconds: (rows, devices) as believed before the step; 0 for one that does not take part.
        patience: more than 1; None waits for every device.
    """
    longest = seconds.max(axis=1)
    if patience is None:
        return longest, np.zeros(seconds.shape, dtype=np.bool_)
    deadline = patience * expected_seconds.max(axis=1)
    for row in np.flatnonzero(longest > deadline):
        order = np.argsort(seconds[row], kind="stable")
        arrived = np.cumsum(batches[row][order])
        half = seconds[row][order][np.searchsorted(2 * arrived, arrived[-1])]
        deadline[row] = max(deadline[row], half)
    return np.minimum(longest, deadline), seconds > deadline[:, None]


def oracle(scenario: Scenario, trace: Trace) -> tuple[Floats, Floats]:
    """Return records and seconds of each step, (steps,), of one that knows each step's speeds and retunes free.

    In each step it has the highest rate that any batches have, none larger than the plan's.
    """
    allocator = Allocator(scenario.tables, scenario.sync_seconds, _ALL_TARGETS)
    dead = np.isnan(trace.slowdowns)
    known = np.where(dead, 1.0, trace.slowdowns)
    records, seconds = np.empty(len(known)), np.empty(len(known))
    last = b""
    for step, (slowdowns, gone) in enumerate(zip(known, dead, strict=True)):
        now = slowdowns.tobytes() + gone.tobytes()
        if now != last:
            caps = np.where(gone, 0, scenario.batches)
            batches = allocator.fill(allocator.best_target(slowdowns, caps), slowdowns, caps)
            total, length = float(batches.sum()), float(allocator.step_seconds(batches, slowdowns))
        records[step], seconds[step], last = total, length, now
    return records, seconds


def _step(
    allocator: Allocator, policy: Policy, slowdowns: Floats, dead: Flags, patience: float | None
) -> tuple[Floats, Floats, Flags]:
    """Return (rows, devices) compute seconds, (rows,) length of the step, and (rows, devices) who was late."""
    seconds = np.where(dead, 0.0, allocator.table_seconds(policy.batches) * slowdowns)
    expected = np.where(dead, 0.0, policy.expected_seconds)
    length, late = wait(seconds, policy.batches * ~dead, expected, patience)
    return seconds, length + allocator.sync_seconds, late
