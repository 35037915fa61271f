"""HyperTune's decision rule, for many arrays at once: the same code runs in training (one array) and simulation. Pure.

After HyperTune (Heydarigorji et al., ICCAD 2020), whose algorithm could not be read; the rules are ours. See
docs/hypertune.md for them and for the statistics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from host.core.tuning.batch_tuner import Batches, Floats
from host.core.tuning.speed_table import SpeedTable
from host.policies.batching.allocation import Allocator
from host.policies.batching.detector import Detector, Flags
from host.policies.batching.forecast import RECHECK_STEPS, Drifts, Durations
from host.policies.batching.retune_budget import CLEAR, LAST, MOST
from host.policies.batching.retune_rules import RetuneRules
from host.policies.batching.slowed_devices import EARLY_STEPS, SlowedDevice, SlowedDevices, fit_levels

# Seconds of every device's batches, and what they are multiplied by.
Pace = tuple[Allocator, Floats]
# The plan's target is kept, and devices that did not change are left alone, unless more than this is lost by it.
PREFERENCE = 0.01
# Where all are as fast as their tables the plan is left for what is so much faster by these.
BETTER_THAN_PLAN = 0.05
# A device that is off its table by no more keeps its batch, unless another target is better for all.
SMALL = 0.05
# The present batches are judged by levels that are so many standard errors lower.
DOUBT = 2.0
# A level so near the table's, and within so many standard errors of it, is the table's.
SNAP, SNAP_DEVIATIONS = 0.02, 2.0
# A disturbance shows at a batch by so many times a jump's threshold.
SHOWN_THRESHOLDS = 2.0
_STATE = {
    "": ("batches", "alive", "dirty"),
    "_durations": ("steps", "ends", "recheck"),
    "_disturbances": ("changed_at",),
    "_disturbances.budget": ("left", "moves", "reference", "faster"),
    "_drifts": ("slowed_at", "slowed_by", "lead"),
}


@dataclass(frozen=True)
class RetuneDecision:
    """A retune of one array.

    Attributes:
        row: which array.
        before, after: (devices,) batches.
        gain_steps: expected, in steps of the present length.
    """

    row: int
    before: Batches
    after: Batches
    gain_steps: float


class Retuner:
    """Batches of `rows` equal arrays, each on its own. Arrays are (rows, devices).

    Attributes:
        batches: records per step as of now.
        alive: devices that are there.
        detector: what is believed of their speeds.
        total_steps: of the run; None if nobody knows.
    """

    def __init__(
        self,
        tables: Sequence[SpeedTable],
        batches: Batches,
        rules: RetuneRules,
        total_steps: int | None = None,
        sync_seconds: float = 0.0,
        rows: int = 1,
        shares_records: bool = False,
    ) -> None:
        """Begin with the plan's batches, (devices,): the largest that a device gets, unless devices share records."""
        shape = (rows, len(tables))
        self.allocator = Allocator(tables, sync_seconds, rules.watts)
        self._rules, self.total_steps, self._initial = rules, total_steps, batches.copy()
        most = [min(table.largest_batch, int(batches.sum())) for table in tables]
        self._largest = np.where(batches > 0, most, 0) if shares_records else self._initial
        self.batches = np.broadcast_to(batches, shape).copy()
        self.alive = np.ones(shape, dtype=np.bool_)
        self.detector = Detector(shape, rules.threshold, rules.window)
        # Levels that are new since the last plan.
        self.dirty = np.zeros(shape, dtype=np.bool_)
        self._durations, self._drifts = Durations(rows), Drifts(shape)
        self._disturbances = SlowedDevices(shape)

    @property
    def slowdowns(self) -> Floats:
        """(rows, devices) believed."""
        return np.exp(self.detector.estimate())

    @property
    def expected_seconds(self) -> Floats:
        """(rows, devices) believed compute seconds of the present batches; 0 for a batch of 0."""
        return np.where(self.batches > 0, self._expected * self.slowdowns, 0.0)

    def probes(self, step: int) -> Batches:
        """Return (rows, devices) records that parked devices should compute beside this step, to be seen.

        One whose last probe deviates is probed in every step until it is clear whether it has changed.
        """
        due = (step % self._rules.probe_steps == 0) | self.detector.deviating.any(axis=1, keepdims=True)
        parked = self.alive & (self.batches == 0) & (self._initial > 0)
        return np.asarray((parked & due).astype(np.int64))

    def observe(self, step: int, compute_seconds: Floats) -> list[RetuneDecision]:
        """Take what a step cost, NaN where nothing came; return what is decided, in force already.

        A device's first step with a new batch says nothing of its speed.

        Args:
            step: its number, from 1.
            compute_seconds: (rows, devices), positive or NaN; of a parked device those of its probe.
        """
        log_ratio = np.log(np.where(self.alive, compute_seconds, np.nan) / self._expected)
        before, was_off, agreed = self.detector.level.copy(), self._off(), self.detector.agreed.copy()
        changes = self.detector.observe(log_ratio)
        changed = changes.any
        if changed.any():
            self._settle(changed)
        over = self._drifts.observe(step, changed, self.detector.level - before)
        # What was as expected with its batch, and then is clearly not, has changed itself.
        jump = np.abs(self.detector.level - before)
        early = self._early(step, jump) & ~(agreed & changes.jumped & (jump > CLEAR[0]))
        self._disturbances.budget.observe(changed, self.detector.level, early, over)
        over |= self._follow(changes.jumped, early, step)
        self._durations.observe(was_off, self._off(), self.alive)
        self.dirty |= changed | over
        slower: Flags = np.any(self.detector.level - before > CLEAR[0], axis=1)
        due = self._due(np.any(changed, axis=1), slower, step) | over.any(axis=1)
        return [made for row in np.flatnonzero(due) if (made := self._decide(int(row), step)) is not None]

    def leave(self, which: Flags) -> None:
        """Take devices away, (rows, devices); where only parked ones are left they get their first batches again."""
        before = self.batches.copy()
        self.alive &= ~which
        self.batches[which] = 0
        stranded = ~self.batches.any(axis=1)
        self.batches[stranded] = np.where(self.alive, self._initial, 0)[stranded]
        self._forget(which, before)

    def join(self, which: Flags) -> None:
        """Take devices back, with their first batches and their tables' speeds; what others took over returns."""
        before = self.batches.copy()
        self.alive |= which
        self.batches = np.where(which, self._initial, self.batches)
        for row in np.flatnonzero(which.any(axis=1)):
            self.batches[row] = self.allocator.trim(self.batches[row], self._initial)
        self._forget(which, before)

    def _forget(self, which: Flags, before: Batches) -> None:
        """Know nothing of devices that have left or come back; pass over the next step of all with another batch."""
        self.detector.reset(which)
        self.detector.skip_next(which | (self.batches != before))
        self._drifts.reset(which)
        self._disturbances.forget(which)
        self._disturbances.budget.reference[which], self._disturbances.budget.left[which.any(axis=1)] = 0.0, MOST
        self.dirty |= which
        self._durations.recheck[which.any(axis=1)] = 0, RECHECK_STEPS

    def dump(self) -> dict[str, Any]:
        """Return what has been learnt of the first array, in JSON's types."""
        return {name: array[0].tolist() for name, array in self._arrays()} | {
            "detector": self.detector.state(),
            "disturbances": self._disturbances.dump(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take what `dump` returned."""
        for name, array in self._arrays():
            array[0] = state.get(name, array[0])  # of the release before: without the budget
        self.detector.load_state(state["detector"])
        self._disturbances.load(state.get("disturbances", []))

    def _arrays(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        for part, names in _STATE.items():
            owner = attrgetter(part)(self) if part else self
            yield from ((name, getattr(owner, name)) for name in names)

    def best_rate(self, row: int) -> float:
        """Return the records per second that the believed speeds allow, by compute alone: without the exchange.

        Batches are those that the rule may choose: up to each device's largest, and no more records than the plan's.
        What batches that were not seen take is uncertain, so all but the present ones are taken for `DOUBT` slower.
        """
        caps, most = np.where(self.alive[row], self._largest, 0), int(self._initial.sum())
        believed, slowdowns = self._pace(row, self._zeros, self._zeros)
        doubted, slower = self._pace(row, self._zeros + DOUBT, self._zeros)
        target = (allocator := Allocator(doubted.tables, 0.0)).best_target(slower, caps, most)
        records = min(most, int(allocator.fill(target, slower, caps).sum()))
        present = Allocator(believed.tables, 0.0).rate(self.batches[row], slowdowns)
        return max(present, records / target if target else 0.0)

    def _due(self, news: Flags, slower: Flags, step: int) -> Flags:
        """Return which rows to think over: those with news, and those whose time has come.

        What may be about to change is waited for, unless a device has clearly become slower: one retune does for both.
        """
        self._durations.recheck[news] = step + RECHECK_STEPS, RECHECK_STEPS
        waits = news & ~slower & self.detector.deviating.any(axis=1)
        self._durations.recheck[waits, 0] = step + self._rules.window - self.detector.longest[waits]
        come = (step >= self._durations.recheck[:, 0]) & (self.detector.longest < max(1, self._rules.window - 1))
        self._durations.recheck[come, 1] *= 2
        self._durations.recheck[come, 0] = step + self._durations.recheck[come, 1]
        return (news & ~waits) | come

    def _settle(self, changed: Flags) -> None:
        """Take levels near the tables' for the tables'."""
        near = np.maximum(SNAP, SNAP_DEVIATIONS * self.detector.standard_error())
        self.detector.level[changed & (np.abs(self.detector.level) < near)] = 0.0

    def _off(self) -> Flags:
        """Return which devices are not as fast as their tables."""
        return np.asarray((self.detector.level != 0) | self._disturbances.hidden(self.detector.level))

    def _early(self, step: int, jump: Floats) -> Flags:
        """Return whose jumps may come from the batch that they got a few steps ago, and not from the device."""
        changed_at, tables = self._disturbances.changed_at, self.allocator.tables
        early = step - changed_at <= np.where(self.batches > 0, EARLY_STEPS, 2 * self._rules.probe_steps + 1)
        for where, each in self._disturbances.known.items():
            early[where] &= each.may_explain(jump[where], tables[where[1]].step_seconds, int(self.batches[where]))
        return np.asarray(early & (changed_at > 0))

    def _follow(self, jumped: Flags, early: Flags, step: int) -> Flags:
        """See which disturbances are others or over, and which may be; return of which devices to think for that."""
        news, changed_at = np.zeros(jumped.shape, dtype=np.bool_), self._disturbances.changed_at
        for where, each in list(self._disturbances.known.items()):
            if jumped[where] and each.trial:  # it is not over
                each.put_off(step)
                self._disturbances.budget.grant(where[0])
            elif jumped[where] and not early[where]:
                del self._disturbances.known[where]
            elif each.trial and self.batches[where] != each.trial:  # that did not pay
                each.put_off(step, 1)
            elif each.trial:
                if step > changed_at[where] + self._rules.window and not self.detector.deviating[where]:  # it is over
                    del self._disturbances.known[where]
                    news[where] = True
            elif self.detector.level[where] == 0 and step >= each.due:
                news[where] = self._try(where, each, step)
        return news

    def _try(self, where: tuple[int, int], each: SlowedDevice, step: int) -> bool:
        """Begin to try whether a disturbance is over that the present batch does not show; return whether it is."""
        home, least = int(self._initial[where[1]]), SHOWN_THRESHOLDS * float(self.detector.thresholds[where])
        # It never was much, or the plan's batch does not show it.
        if not each.slowed(least) or max(1, self.batches[where]) >= home:
            del self._disturbances.known[where]
            return True
        each.trial = home
        return True

    def _levels(self, row: int, device: int, each: SlowedDevice) -> tuple[Floats, Floats]:
        """Return what is believed of every batch of a disturbed device: see `fit_levels`."""
        present, points = max(1, int(self.batches[row, device])), each.seen.copy()
        points.pop(present, None)  # the present one is the last
        estimate, error = self.detector.estimate(row)[device], self.detector.standard_error(row)[device]
        points[present] = float(estimate), float(error)
        return fit_levels(self.allocator.tables[device].step_seconds, points)

    def _pace(self, row: int, deviations: Floats, lead: Floats, least: float = -np.inf) -> Pace:
        """Return what is believed of an array's speeds, so many standard errors slower, and by `lead`, a log, too.

        Nobody is taken to be faster than `least`, the log of a slowdown.
        """
        estimate = np.maximum(self.detector.estimate(row), least)
        slowdowns = np.exp(estimate + deviations * self.detector.standard_error(row) + lead)
        own = dict[int, Floats]()
        for device, each in self._disturbances.of_row(row):
            if not each.trial:
                levels, errors = self._levels(row, device, each)
                levels = np.maximum(levels, least) + deviations[device] * errors
                seconds = self.allocator.tables[device].step_seconds * np.exp(levels)
                own[device], slowdowns[device] = np.maximum.accumulate(seconds), np.exp(lead[device])
        return self.allocator.replaced(own), slowdowns

    def _decide(self, row: int, step: int) -> RetuneDecision | None:
        present, (allocator, slowdowns) = self.batches[row].copy(), self._pace(row, self._zeros, self._zeros)
        batches = self._affordable(row, self._choose(row, allocator, slowdowns))
        if np.array_equal(batches, present):
            self.dirty[row] = False
            return None
        # What is known of few steps may be wrong: the present batches get the benefit of the doubt.
        lenient, doubted = self._pace(row, self._zeros - DOUBT, self._zeros)
        now, then = lenient.rate(present, doubted), allocator.rate(batches, slowdowns)
        share = 1 - now / then if then > 0 else 0.0
        gain = share * self._horizon(row, present, batches, step)
        back = self._disturbances.budget.faster[row] & ((present == 0) | (self.detector.level[row] < CLEAR[0]))
        stays_off = (
            self._off()[row] & ~(back & (batches > present)) & ((batches < present) | (batches != self._initial))
        )
        least = self._disturbances.budget.least_gain(
            row,
            which := batches != present,
            returns=not (stays_off | self._disturbances.tried(row))[which].any(),
            home=bool((batches == self._initial)[self.alive[row]].all()),
        )
        if share <= least or gain <= self._rules.cost_steps:
            return None
        batches = self._tell(row, step, batches)
        if np.array_equal(batches, present):
            return None
        self.batches[row] = batches
        self.detector.skip_next(batches != present, row)
        self.dirty[row] = False
        self._disturbances.budget.spend(row, batches != present, self.detector.level)
        return RetuneDecision(row, present, batches, gain)

    def _affordable(self, row: int, batches: Batches) -> Batches:
        """Return these batches; with the last retune the plan's for devices that could have it, and no others."""
        if self._disturbances.budget.left[row] >= LAST:
            return batches
        most, present = np.where(self.alive[row], self._initial, 0), self.batches[row]
        returns = (batches > present) & (batches >= most) & ~self._disturbances.hidden(self.detector.level)[row]
        return np.where(returns, most, np.minimum(present, most))

    def _tell(self, row: int, step: int, batches: Batches) -> Batches:
        """Take what disturbed devices are expected to do with other batches; return these, with those of trials."""
        known, level = self._disturbances.known, self.detector.level[row]
        estimate, error = self.detector.estimate(row), self.detector.standard_error(row)
        for device, each in self._disturbances.of_row(row):
            batches[device] = min(int(batches[device]), each.trial or int(batches[device]))
        for device in np.flatnonzero((batches != self.batches[row]) & self.alive[row]).tolist():
            if level[device] or (row, device) in known:
                each = known.setdefault((row, device), SlowedDevice())
                old, new = (max(1, int(of[device])) for of in (self.batches[row], batches))
                levels, _ = self._levels(row, device, each)
                each.see(old, float(estimate[device]), float(error[device]))
                believed = 0.0 if each.trial or abs(levels[new - 1]) < SNAP else float(levels[new - 1])
                self.detector.believe((row, device), believed)
                each.due = each.due and step + each.wait
        self._disturbances.changed_at[row][batches != self.batches[row]] = step
        return batches

    def _choose(self, row: int, allocator: Allocator, slowdowns: Floats) -> Batches:
        """Return the best batches, or others that are nearly as good and change less."""
        if not (alive := self.alive[row]).any():
            return np.asarray(self.batches[row])
        caps, largest = np.where(alive, self._initial, 0), np.where(alive, self._largest, 0)
        safely, safe = self._pace(row, self._quantiles, self._drifts.lead[row])
        plan = safely.fill(self._target, safe, caps)
        rest = ~self.dirty[row] | ((np.abs(self.detector.estimate(row)) < SMALL) & (self.batches[row] >= caps))
        others = (allocator.table_seconds(self.batches[row]) * slowdowns)[rest]
        kept = safely.fill(max(self._target, float(others.max(initial=0.0))), safe, caps)
        kept[rest] = self.batches[row][rest]
        # Seconds are what devices say: nobody takes records over because it claims to be faster than half of them are.
        usual = float(np.quantile(self.detector.estimate(row)[alive], 0.5, method="lower"))
        safely, safe = self._pace(row, self._quantiles, self._drifts.lead[row], usual)
        shared = safely.fill(safely.best_target(safe, largest, int(self._initial.sum())), safe, largest)
        best, better = allocator.trim(kept, self._initial), 1 + PREFERENCE
        if not self._off()[row][alive].any():
            best, better = plan, 1 + BETTER_THAN_PLAN
        for other in (plan, allocator.trim(shared, self._initial)):
            if allocator.rate(other, slowdowns) > better * allocator.rate(best, slowdowns):
                best = other
        return best

    @cached_property
    def _target(self) -> float:
        """Table seconds of the plan's slowest device."""
        return float(self.allocator.table_seconds(self._initial).max())

    @cached_property
    def _zeros(self) -> Floats:
        return np.zeros(len(self._initial))

    @cached_property
    def _quantiles(self) -> Floats:
        """(devices,) how many standard errors above its mean each one's slowdown is taken for: quantile 1 - h, or 0.5.

        A record too many makes everyone wait, one too few costs the device's share h of it: the newsvendor's problem.
        """
        others = 1 - self._initial / max(1, int(self._initial.sum()))
        return np.array([NormalDist().inv_cdf(other) for other in np.clip(others, 0.5, 0.999)])

    def _horizon(self, row: int, before: Batches, after: Batches, step: int) -> float:
        """Return for how many steps a retune is expected to help."""
        steps = self._durations.expected_steps(row, bool(self._off()[row][before != after].any()))
        return steps if self.total_steps is None else min(steps, float(self.total_steps - step))

    @property
    def _expected(self) -> Floats:
        """(rows, devices) table seconds of the present batches, of parked devices those of a probe of one record."""
        return self.allocator.table_seconds(np.maximum(self.batches, 1))
