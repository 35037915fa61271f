"""Synchronous training of unequal devices through a trace, step by step, many traces at once. Pure.

A step takes as long as its slowest participant's compute, plus the exchange: T = max_i s_i tau_i(b_i) + sync. A retune
costs so many steps of the present length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from csd_lab.bench.training.tuning_baselines import Policy
from csd_lab.simulate.slowdown_traces import SlowdownTrace
from host.core.tuning.batch_tuner import Batches, Floats
from host.core.tuning.speed_table import SpeedTable
from host.policies.batching.allocation import Allocator
from host.policies.batching.detector import Flags
from host.training.sync.stragglers import DeviceProgress, give_up_seconds


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
class TuningOutcome:
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
    scenario: Scenario,
    traces: Sequence[SlowdownTrace],
    policy: Policy,
    straggler_factor: float | None = None,
    charged: bool = True,
    stops: bool = True,
) -> TuningOutcome:
    """Let a policy train through traces of equal size, one per row of it.

    Args:
        scenario: the array.
        traces: what happens.
        policy: chooses the batches.
        straggler_factor: see `wait`; None waits for every device.
        charged: whether a retune costs anything.
        stops: a device that was late gives up its batch at the host's word and begins the next step with the others,
            and how long the batch would have taken is known from how far it came; if not, it computes on to the
            end, takes no part in steps that begin before that, and is observed then.
    """
    allocator, rows = Allocator(scenario.tables, scenario.sync_seconds), len(traces)
    sums = np.zeros((5, rows))
    trace_process = np.stack([trace.slowdowns for trace in traces], axis=1)
    noise = np.stack([trace.noise for trace in traces], axis=1)
    gone = np.zeros(trace_process.shape[1:], dtype=np.bool_)
    stragglers = None if stops else _Stragglers(trace_process.shape[1:])
    for step, (slowdowns, noises) in enumerate(zip(trace_process, noise, strict=True), 1):
        dead = np.isnan(slowdowns)
        slowdowns = np.where(dead, 1.0, slowdowns)
        if (back := gone & ~dead).any():
            policy.join(back)
        away = dead if stragglers is None else dead | stragglers.busy
        batches = np.where(away, 0, policy.batches)
        seconds = allocator.table_seconds(batches) * slowdowns
        length, late = wait(seconds, batches, np.where(away, 0.0, policy.expected_seconds), straggler_factor)
        length = length + scenario.sync_seconds
        sums[0] += (batches * ~late).sum(axis=1)
        sums[4] += (batches * late).sum(axis=1)
        if stragglers is not None:
            seconds = stragglers.work(seconds, slowdowns, length, late, dead, policy.batches)
        probes = np.where(dead, 0, policy.probes(step))
        seconds = np.where(probes > 0, allocator.table_seconds(probes) * slowdowns, seconds)
        retuned = np.zeros(rows)
        retuned[[each.row for each in policy.observe(step, np.where(seconds > 0, seconds * noises, np.nan))]] = 1.0
        if (left := dead & ~gone).any():
            policy.leave(left)
        gone = dead
        cost = scenario.cost_steps * length * retuned * charged
        sums[1:4] += np.stack([length + cost, cost, retuned])
    return TuningOutcome(*sums)


class _Stragglers:
    """Devices that compute a late batch to its end while the others are at later steps. Arrays are (rows, devices)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._left, self._spent, self._batches = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=np.int64)

    @property
    def busy(self) -> Flags:
        """Which are at it."""
        busy: Flags = self._left > 0
        return busy

    def work(
        self, seconds: Floats, slowdowns: Floats, length: Floats, late: Flags, dead: Flags, batches: Batches
    ) -> Floats:
        """Let a step of `length` pass, (rows,); return the seconds that end in it, 0 for a device without any."""
        time = length[:, None]
        needed = self._left * slowdowns
        ends = self.busy & (needed <= time) & ~dead
        same = self._batches == batches
        done = np.where(ends & same, self._spent + needed, np.where(late, 0.0, seconds))
        goes_on = self.busy & ~ends & ~dead
        self._spent = np.where(goes_on, self._spent + time, np.where(late, time, 0.0))
        rest = np.where(late, np.maximum(seconds - time, 1e-12) / slowdowns, 0.0)
        self._left = np.where(goes_on, self._left - time / slowdowns, rest)
        self._batches = np.where(late, batches, self._batches)
        return done


def wait(
    seconds: Floats, batches: Batches, expected_seconds: Floats, straggler_factor: float | None
) -> tuple[Floats, Flags]:
    """Return how long each array waits for its devices, (rows,), and which of them, (rows, devices), are late.

    At the deadline of `host.training.sync.stragglers` the step ends without those that are not there.

    Args:
        seconds: (rows, devices) compute seconds; 0 for one that does not take part.
        batches: (rows, devices) records of those that do, else 0.
        expected_seconds: (rows, devices) as believed before the step; 0 for one that does not take part.
        straggler_factor: more than 1; None waits for every device.
    """
    longest = seconds.max(axis=1)
    if straggler_factor is None:
        return longest, np.zeros(seconds.shape, dtype=np.bool_)
    deadline = straggler_factor * expected_seconds.max(axis=1)
    for row in np.flatnonzero(longest > deadline):
        own = zip(batches[row].tolist(), seconds[row].tolist(), expected_seconds[row].tolist(), strict=True)
        deadline[row] = give_up_seconds([DeviceProgress("", *figures) for figures in own], straggler_factor)
    return np.minimum(longest, deadline), seconds > deadline[:, None]


def oracle(scenario: Scenario, trace: SlowdownTrace) -> tuple[Floats, Floats]:
    """Return records and seconds of each step, (steps,), of one that knows each step's speeds and retunes free.

    In each step it has the highest rate that any batches have, none larger than the plan's.
    """
    allocator = Allocator(scenario.tables, scenario.sync_seconds)
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
