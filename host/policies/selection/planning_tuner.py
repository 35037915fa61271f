"""A tuner that first finds out which devices should train, in steps that count, and hands over to another. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from csd_emu.util.node_names import HOST
from firmware_agent.common.errors import ConfigurationError
from host.core.tuning.batch_tuner import Batches, BatchTuner, Floats, Retune, StepCost
from host.policies.selection.chosen_training import ChosenTraining
from host.policies.selection.level_changes import EXCHANGE, STEPS_FOR_GOOD, LevelChanges
from host.policies.selection.notices import Notices
from host.policies.selection.planner_protocol import Decider, MakeInner, TrialDecision, batches_by_node
from host.policies.selection.selection_rules import PlannedAgain, SelectionPlan
from host.policies.selection.trials import Trials

# Others take over if they are better by this share, and win what a change costs in what is left, in steps.
_MARGIN, _COST_STEPS = 0.02, 3.0


class PlanningTuner:
    """A `host.core.tuning.batch_tuner.BatchTuner` and `Chooser`. Devices that were not chosen rest: no batch, no probe.

    Planning begins when it is first asked or told something, not before: a resumed run restores what was decided.
    """

    def __init__(
        self,
        first: Mapping[str, int],
        make_planner: Callable[[], Decider],
        make_inner: MakeInner,
        on_decided: Callable[[TrialDecision], None],
        on_note: Callable[[str], None] = lambda _: None,
        cold: Collection[str] = (),
        handed_over: bool = False,
    ) -> None:
        """Prepare; the first trial begins with the first question.

        Args:
            first: batches of the job's plan, by node, in participant order: for as long as nothing can be decided on.
            make_planner: makes a planner that has seen nothing.
            make_inner: makes the tuner that goes on.
            on_decided: told what was decided, and again if all that was chosen is lost.
            on_note: told what people should know, in sentences.
            cold: nodes whose first step says nothing, a stopwatch having seen torch warm up in it.
            handed_over: whether its state has all of a planning that is under way: other servers plan alike, and one
                that takes over the state of another goes on as that one does.
        """
        self._first, self._nodes = dict(first), list(first)
        self._make_inner = make_inner
        self._notices = notices = Notices(on_decided, on_note)
        self._new_trials: Callable[[], Trials] = lambda: Trials(
            make_planner(), frozenset(cold), notices.note, handed_over
        )
        self._trials = self._new_trials()
        self._here = np.ones(len(self._nodes), bool)
        # Nodes for whose sake planning was begun anew: once for each, or one that comes and goes would keep it going.
        self._came: set[str] = set()
        self._training: ChosenTraining | None = None
        # Who trained before what is left was looked at again.
        self._before: ChosenTraining | None = None
        self._step = 0
        self._begun = False

    @property
    def _inner(self) -> BatchTuner | None:
        return None if self._training is None else self._training.inner

    @property
    def _chosen(self) -> dict[int, int]:
        return {} if self._training is None else self._training.chosen

    @property
    def error(self) -> ConfigurationError | None:
        """Why nothing could be decided on; None if it could, or may yet."""
        self.begin()
        return self._trials.error

    @property
    def decided(self) -> bool:
        """Whether it is clear who trains, or that nobody can as was asked for."""
        return self.error is not None or self._inner is not None

    @property
    def batches(self) -> Batches:
        """(devices,) records per step as of now; 0 for a device that does not take part."""
        self.begin()
        if self._inner is not None:
            batches: Batches = self._spread(self._inner.batches, np.zeros(len(self._nodes), np.int64))
            return batches
        if (wanted := self._trials.wanted) is None:
            lost = [node in self._trials.lost for node in self._nodes]
            return np.where(self._here & ~np.array(lost), list(self._first.values()), 0)
        return np.where(self._here, np.array([wanted.get(node, 0) for node in self._nodes], np.int64), 0)

    @property
    def slowdowns(self) -> Floats:
        """(devices,) observed over expected seconds; infinite while planning: every device is waited for."""
        self.begin()
        if self._inner is None:
            return np.full(len(self._nodes), np.inf)
        slowdowns: Floats = self._spread(self._inner.slowdowns, np.ones(len(self._nodes)))
        return slowdowns

    @property
    def resting(self) -> frozenset[int]:
        """Devices that were not chosen, as of now: this begins nothing, for `isinstance` of a protocol asks it too."""
        if self._inner is None:
            return frozenset()
        return frozenset(range(len(self._nodes))).difference(self._chosen)

    @property
    def is_computing(self) -> bool:
        """Whether the next step may take seconds; this begins nothing, see `resting`."""
        return self.is_deciding or (
            self._training is not None and self._training.levels is not None and self._trials.behind
        )

    @property
    def is_deciding(self) -> bool:
        """Whether it is to be decided who trains, or to be looked at again; this begins nothing either."""
        training = self._training
        return self._trials.error is None and (
            training is None or (training.due and self._step + 1 >= self._trials.next_look)
        )

    def idle(self) -> list[str]:
        """Return the names of the drives that take no part as of now."""
        return [node for node, batch in zip(self._nodes, self.batches, strict=True) if not batch and node != HOST]

    def begin(self) -> None:
        """Begin the first trial, or decide without one, unless that was done or restored."""
        if not self._begun:
            self._begun = True
            self._go_on()

    def telling_later(self) -> AbstractContextManager[None]:
        """Collect notifications inside the block and send them at its end; after an error they are dropped."""
        return self._notices.later()

    def probes(self, step: int) -> Batches:
        """Return (devices,) records that parked ones of the chosen devices compute beside this step."""
        self.begin()
        nothing = np.zeros(len(self._nodes), np.int64)
        return nothing if self._inner is None else self._spread(self._inner.probes(step), nothing)

    def watch(self, cost: StepCost) -> None:
        """Count a step for the trial under way if it had its batches; end the trial if one of its devices failed."""
        self.begin()
        self._trials.watch(cost)
        if self._training is not None:
            self._training.watch(cost, self._nodes)

    def observe(self, step: int, compute_seconds: Floats, steps_left: int | None = None) -> Retune | None:
        """Take what a step cost; return the batches of the next trial, or of what is decided, when they are due."""
        self.begin()
        self._step = step
        before, training = self.batches, self._training
        if training is not None:
            if training.due and step >= self._trials.next_look and (steps_left or 0) > STEPS_FOR_GOOD:
                return self._look_again(training, before, steps_left or 0)
            own = np.asarray(compute_seconds)[list(training.chosen)]
            retune = training.inner.observe(step, own, steps_left)
            training.watch_levels(self._nodes, before, own, steps_left or 0, self._trials.record_seconds)
            if training.levels is not None and (steps_left or 0) > STEPS_FOR_GOOD:
                training.due = training.due or self._trials.is_news(training.noise_records)
            return None if retune is None else self._widen(retune)
        if self._trials.error is not None:
            return None
        last = self._trials.is_odd() or steps_left == 0
        if last or self._trials.is_full():
            self._trials.end()
        reason = self._go_on(last)
        return self._retune(before, reason) if reason else None

    def _look_again(self, training: ChosenTraining, before: Batches, steps_left: int) -> Retune | None:
        """Plan what is left, as some nodes' level has changed, or they came or went; nothing if all stays as it is."""
        changed = {} if training.levels is None else training.levels.changed()
        training.stale = exchange = changed.pop(EXCHANGE, None) is not None
        share = min(1.0, steps_left * int(before.sum()) / training.records)
        nodes = tuple(self._nodes[number] for number in training.chosen if self._here[number])
        if changed or exchange:
            who = ", ".join([*changed, *["the exchange"] * exchange])
            self._notices.note(f"{who}: as fast as in the trials no more; who trains is looked at again")
        noise = training.noise_records if self._trials.is_news(training.noise_records) else None
        if noise is not None:
            self._notices.note(f"the gradient noise scale is {noise:.3g} records; who trains is looked at again")
        margin = _MARGIN + _COST_STEPS / steps_left
        left = PlannedAgain(share, margin, nodes, exchange=exchange, step=self._step, critical_batch=noise)
        self._trials.look_again(changed, left)
        self._before, self._training = training, None
        reason = self._go_on()
        return self._retune(before, reason) if self._training is not training else None

    def meet(self, here: Collection[int]) -> None:
        """Take who is there, before those who left and came are told one by one: a whole server's, as a rule.

        A trial that one of those who left was part of ends; they take part in no other.
        """
        self.begin()
        gone = self._here.copy()
        gone[list(here)] = False
        self._here[:] = False
        self._here[list(here)] = True
        if self.is_deciding:
            self._lose(np.flatnonzero(gone), "left in pre-training")

    def leave(self, device: int) -> Retune:
        """Note that a device is gone; a trial that it was part of ends, and it takes part in no other."""
        before, node = self.batches, self._nodes[device]
        self._here[device] = False
        if self._inner is not None:
            return self._leave_chosen(device)
        self._before = None
        self._lose([device], "left in pre-training")
        reason = self._go_on()
        return self._retune(before, f"{node} left{'; ' * bool(reason)}{reason}")

    def join(self, device: int) -> Retune:
        """Note that a device is back: it trains if it was chosen."""
        self.begin()
        self._here[device] = True
        node, training = self._nodes[device], self._training or self._before
        if training is not None and not self._trials.handed_over:
            self._trials.regain(node)
        if training is not None and device in training.chosen:
            retune = training.inner.join(list(training.chosen).index(device))
            return self._widen(retune) if self._training is not None else self._retune(self.batches, retune.reason)
        if self._training is not None and self._training.levels is not None:
            self._training.due = True
            return self._retune(self.batches, f"{node} is back; who trains is looked at again")
        if self._trials.handed_over and self._inner is None and node in self._trials.lost and node not in self._came:
            return self._begin_again(device)
        return self._retune(self.batches, f"{node} is back; it was not chosen")

    def possible_records_per_second(self) -> float:
        """Return what the inner tuner says; 0 while planning."""
        self.begin()
        return 0.0 if self._inner is None else self._inner.possible_records_per_second()

    def finish(self) -> None:
        """Decide with what is known, if that was not done yet: the run has ended."""
        if not self.decided:
            self._trials.end()
            self._go_on(last=True)

    def state(self) -> dict[str, Any]:
        """Return what was decided; planning that is under way begins again, unless it is to be handed over."""
        here: dict[str, Any] = {"here": self._here.tolist()}
        training = self._training or self._before
        if self._trials.handed_over or training is not None:
            here["planning"] = self._trials.state()
            if not self._trials.handed_over:  # what is looked at again begins again
                here["planning"]["trying"] = None
            here |= {"came": sorted(self._came), "step": self._step, "begun": self._begun}
        if training is None:
            return here
        chosen = {"nodes": list(training.chosen), "batches": list(training.chosen.values())}
        levels = msgspec.to_builtins(training.levels)
        inner = {"inner": training.inner.state(), "beside_seconds": training.beside_seconds, "due": training.due}
        return here | {"chosen": chosen, **inner, "levels": levels, "records": training.records}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`; what another server decided meanwhile is told here too."""
        decided = self._inner is not None
        self._here = np.array(state["here"], bool)
        self._trials, self._training, self._before = self._new_trials(), None, None
        self._begun = "chosen" in state
        if "planning" in state:  # not of a release before, unless it may be handed over
            self._trials.load_state(state["planning"])
            self._came, self._step, self._begun = set(state["came"]), int(state["step"]), bool(state["begun"])
        if not self._trials.handed_over:
            self._lose(np.flatnonzero(~self._here), "was lost before")
        if "chosen" not in state:
            return
        chosen = state["chosen"]
        numbers = dict(zip(map(int, chosen["nodes"]), map(int, chosen["batches"]), strict=True))
        inner = self._hand_over(numbers, state.get("beside_seconds"))
        inner.inner.load_state(state["inner"])
        if state.get("levels") is not None:
            inner.records, inner.levels = float(state["records"]), msgspec.convert(state["levels"], LevelChanges)
            inner.due = bool(state.get("due")) or bool(inner.levels.changed())
        if self._trials.handed_over and not decided and (plan := self._trials.decide()) is not None:
            self._tell_decided(plan)

    def _begin_again(self, device: int) -> Retune:
        """Plan anew with a device, and others that came with it, when planning was under way."""
        before = self.batches
        here = {node for node, there in zip(self._nodes, self._here, strict=True) if there}
        self._came |= here.intersection(self._trials.lost)
        self._trials = self._new_trials()
        self._lose(np.flatnonzero(~self._here), "was lost before")
        reason = self._go_on()
        return self._retune(before, f"{self._nodes[device]} came{'; ' * bool(reason)}{reason}")

    def _go_on(self, last: bool = False) -> str:
        """Begin the next trial, or decide, unless a trial is under way; return what was begun, for people."""
        if self._trials.wanted is not None or self._trials.error is not None:
            return ""
        return ("" if last else self._trials.begin()) or self._decide()

    def _decide(self) -> str:
        before, self._before, self._training = self._before, None, None
        plan = self._trials.decide()
        batches = {} if plan is None else batches_by_node(self._trials.planner, plan.chosen)
        numbers = {self._nodes.index(node): batch for node, batch in batches.items()}
        if before is not None and (plan is None or before.is_kept(numbers, self._here)):
            # Where nothing keeps to the limits any more they train on too.
            self._trials.error, self._training = None, before
            self._watch(before, before.records)
            return "those that train go on"
        if plan is None:
            return f"nothing was chosen: {self._trials.error}"
        each = {} if self._trials.handed_over else self._trials.record_seconds(batches)
        longest = max((each[node] * batch for node, batch in batches.items() if node in each), default=None)
        beside_seconds = None if longest is None else max(0.0, plan.chosen.step_seconds - longest)
        self._watch(self._hand_over(dict(sorted(numbers.items())), beside_seconds), plan.chosen.trained_records)
        self._tell_decided(plan)
        name = self._trials.planner.cluster.name(plan.chosen.configuration)
        return "; ".join([f"{name} was chosen", *plan.reasons[:1]])

    def _watch(self, training: ChosenTraining, records: float) -> None:
        """Watch levels, of what was measured; several servers do not, for each would have to decide the same."""
        training.begin(records, None if self._trials.handed_over else LevelChanges())

    def _tell_decided(self, plan: SelectionPlan) -> None:
        trials = self._trials
        batches = batches_by_node(trials.planner, plan.chosen)
        self._notices.decided(TrialDecision(trials.planner.cluster, plan, batches, self._step, tuple(trials.lost)))

    def _hand_over(self, chosen: dict[int, int], beside_seconds: float | None) -> ChosenTraining:
        inner = self._make_inner(list(chosen), list(chosen.values()), beside_seconds)
        self._training = training = ChosenTraining(chosen, inner, beside_seconds)
        return training

    def _leave_chosen(self, device: int) -> Retune:
        """Note that a device is gone; if nobody of the chosen is left, decide again among the others."""
        before, node = self.batches, self._nodes[device]
        if self._training is None or device not in self._chosen:
            return self._retune(before, f"{node} left; it was not chosen")
        retune = self._widen(self._training.inner.leave(list(self._chosen).index(device)))
        if self._here[list(self._chosen)].any():
            others = set(np.flatnonzero(self._here).tolist()).difference(self._chosen)
            if others and self._training.levels is not None:
                self._training.due = True
                self._lose(np.flatnonzero(~self._here), "left")
            return retune
        self._lose(self._chosen, "was chosen and left")
        self._lose(np.flatnonzero(~self._here), "left")
        reason = self._decide() if self._trials.error is None else str(self._trials.error)
        return self._retune(before, f"all that were chosen are gone; {reason}")

    def _lose(self, devices: Iterable[int], why: str) -> None:
        self._trials.lose([self._nodes[device] for device in devices], why)
        if self._trials.error is not None:
            self._training = None

    def _spread(self, own: Any, others: Any) -> Any:
        others[list(self._chosen)] = own
        return others

    def _widen(self, retune: Retune) -> Retune:
        """Return a retune of the chosen devices as one of all."""
        numbers = list(self._chosen)
        changed = tuple(numbers[number] for number in retune.changed)
        return replace(retune, batches=self.batches, changed=changed, slowdowns=self.slowdowns)

    def _retune(self, before: Batches, reason: str) -> Retune:
        changed = np.flatnonzero(before != self.batches)
        return Retune(self.batches, tuple(map(int, changed)), np.ones(len(self._nodes)), reason, 0.0)
