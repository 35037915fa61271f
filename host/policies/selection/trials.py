"""The trials of a run's planning: the one under way, what came of those before, and who failed in them. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from firmware_agent.common.errors import ConfigurationError
from host.core.tuning.batch_tuner import StepCost
from host.policies.selection.cluster import Trial, TrialStep
from host.policies.selection.level_changes import STEPS_FOR_GOOD
from host.policies.selection.planner_protocol import Decider, batches_by_node
from host.policies.selection.selection_rules import PlannedAgain, SelectionPlan

# A trial whose steps are others than it asked for, by the way of epochs that end, is given up after so many of them.
_MOST_ODD = 8
# A gradient noise scale is another one if it differs by this factor.
_OTHER_SCALE = 2.0


class Observed(msgspec.Struct, frozen=True, tag=True):
    """The steps of a trial."""

    trial: Trial
    seen: list[TrialStep]


class Lost(msgspec.Struct, frozen=True, tag=True):
    """A node takes part in nothing any more."""

    node: str


class Regained(msgspec.Struct, frozen=True, tag=True):
    """A node that was lost may take part again."""

    node: str


class PlannerQuery(msgspec.Struct, frozen=True, tag=True):
    """What to measure next, or with `last` what is best: it settles batches on what is known by then."""

    last: bool


class LookAgain(msgspec.Struct, frozen=True, tag=True):
    """What is left is planned again: (records, seconds) of the last steps of nodes whose level has changed."""

    changed: dict[str, list[tuple[int, float]]]
    again: PlannedAgain


PlannerCall = Observed | Lost | Regained | PlannerQuery | LookAgain
"""What a planner was asked and told, from which another planner can reach the same state."""


@dataclass
class _Trying:
    """The trial under way.

    Attributes:
        trial: it.
        wanted: node -> records per step.
        seen: its steps so far.
        odd: steps since it began that had other batches.
    """

    trial: Trial
    wanted: dict[str, int]
    seen: list[TrialStep] = field(default_factory=list)
    odd: int = 0


class Trials:
    """Asks a planner for trials, and tells it what their steps cost.

    Attributes:
        planner: it.
        handed_over: whether another server may go on from the `state`.
        lost: nodes that take part in nothing any more.
        error: why nothing can be decided on, as far as is known.
    """

    def __init__(self, planner: Decider, cold: frozenset[str], note: Callable[[str], None], handed_over: bool) -> None:
        """Begin with a planner that has seen nothing.

        Args:
            planner: it.
            cold: nodes whose first step says nothing.
            note: told what people should know.
            handed_over: whether another server may go on from the `state`.
        """
        self.planner, self.handed_over = planner, handed_over
        self._calls: list[PlannerCall] = []
        # Of these the planner was asked and told so many: those of another one wait until they matter.
        self._repeated = 0
        self.lost: list[str] = []
        self.error: ConfigurationError | None = None
        self._trying: _Trying | None = None
        self._cold, self._note = cold, note

    @property
    def wanted(self) -> Mapping[str, int] | None:
        """Node -> records per step of the trial under way; None if there is none."""
        return None if self._trying is None else self._trying.wanted

    def begin(self) -> str:
        """Begin the next trial; return what was begun, for people, or nothing if enough is known."""
        self._record(PlannerQuery(last=False))
        if (trial := self.planner.next_trial()) is None:
            return ""
        self._trying = _Trying(trial, batches_by_node(self.planner, trial))
        self._note(f"pre-training of {self._name(trial)} for {trial.steps} steps: {trial.why}")
        return f"pre-training of {self._name(trial)}"

    def watch(self, cost: StepCost) -> None:
        """Count a step for the trial under way if it had its batches; end the trial if one of its devices failed."""
        cold, self._cold = self._cold, self._cold - cost.compute_seconds.keys()
        if (trying := self._trying) is None:
            return
        if failed := [node for node in trying.wanted if node in cost.missing]:
            self.lose(failed, "failed in pre-training")
        elif dict(cost.records) == trying.wanted:
            if cold.isdisjoint(trying.wanted):
                trying.seen.append(TrialStep(dict(cost.compute_seconds), cost.array_seconds, sum(cost.joules.values())))
        else:
            trying.odd += 1

    def is_odd(self) -> bool:
        """Whether the trial under way does not get the steps that it asks for; people are told."""
        if (trying := self._trying) is None or trying.odd <= _MOST_ODD + 2 * trying.trial.steps:
            return False
        self._note(
            f"pre-training of {self._name(trying.trial)}: {trying.odd} steps had other batches than it asked for (an "
            f"epoch has too few records for its {sum(trying.wanted.values())}, or devices came and went): what is "
            "known by now decides; have smaller batches, with batch_size or sync.tuning"
        )
        return True

    def is_full(self) -> bool:
        """Whether the trial under way has all the steps that it asked for."""
        return self._trying is not None and len(self._trying.seen) >= self._trying.trial.steps

    def end(self) -> None:
        """End the trial under way, if there is one, with the steps that it has."""
        trying, self._trying = self._trying, None
        if trying is not None and trying.seen:
            self._record(Observed(trying.trial, list(trying.seen)))
            self.planner.observe(trying.trial, trying.seen)

    def decide(self) -> SelectionPlan | None:
        """End trials for good and return what is best; None if nothing is (see `error`)."""
        self._trying = None
        self._record(PlannerQuery(last=True))
        try:
            return self.planner.decide()
        except ConfigurationError as error:
            self.error = error
            return None

    def look_again(self, changed: dict[str, list[tuple[int, float]]], again: PlannedAgain) -> None:
        """Have what is left planned again, see `Decider.look_again`."""
        self._record(LookAgain(changed, again))
        self.planner.look_again(changed, again)

    def lose(self, nodes: Sequence[str], why: str) -> None:
        """Have these take part in nothing any more; a trial that one of them was part of ends."""
        if self._trying is not None and not self._trying.wanted.keys().isdisjoint(nodes):
            self.end()
        for node in (each for each in nodes if each not in self.lost):
            self.lost.append(node)
            self._note(f"{node} {why}: it is in no plan any more")
            self._record(Lost(node))
            try:
                self.planner.lose(node)
            except ConfigurationError as error:  # nobody is left of those who may train
                self.error, self._trying = error, None

    def regain(self, node: str) -> None:
        """Have a node that was lost be one of those that may take part again."""
        if node in self.lost:
            self.lost.remove(node)
            self._record(Regained(node))
            self.planner.regain(node)

    @property
    def next_look(self) -> int:
        """The step before which what is left is not looked at again: each time for twice as long."""
        looks = [call.again.step for call in self._calls if isinstance(call, LookAgain)]
        return looks[-1] + STEPS_FOR_GOOD * 2 ** (len(looks) - 1) if looks else 0

    def is_news(self, noise_records: float | None) -> bool:
        """Return whether to look again at a gradient noise scale that is another one than by which was decided."""
        if not self.planner.follows_noise or noise_records is None or not noise_records > 0:
            return False
        told = [call.again.critical_batch for call in self._calls if isinstance(call, LookAgain)]
        known = next((each for each in reversed(told) if each is not None), None)
        return known is None or not 1 / _OTHER_SCALE < noise_records / known < _OTHER_SCALE

    @property
    def behind(self) -> bool:
        """Whether the planner is still to be told what another one was: that takes as long as it did."""
        return self._repeated < len(self._calls)

    def record_seconds(self, batches: Mapping[str, int]) -> dict[str, float]:
        """Return what `Decider.record_seconds` does."""
        self._catch_up()
        return self.planner.record_seconds(batches)

    def state(self) -> dict[str, Any]:
        """Return where planning stands, as JSON takes it."""
        return {
            "calls": msgspec.to_builtins(self._calls),
            "trying": None if self._trying is None else msgspec.to_builtins(self._trying),
            "lost": list(self.lost),
            "cold": sorted(self._cold),
            "error": None if self.error is None else str(self.error),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on with the planning of another server, or of the run that this one resumes; nothing was tried yet.

        Raises:
            KeyError, msgspec.ValidationError: it is no `state`.
        """
        self._calls = msgspec.convert(state["calls"], list[PlannerCall])
        self._trying = None if state["trying"] is None else msgspec.convert(state["trying"], _Trying)
        self.lost[:] = map(str, state["lost"])
        self._cold = frozenset(state["cold"])
        self.error = None if state["error"] is None else ConfigurationError(str(state["error"]))

    def _record(self, call: PlannerCall) -> None:
        """Write down a call that is about to be made, with those before it made that another planner was told."""
        self._catch_up()
        self._calls.append(call)
        self._repeated = len(self._calls)

    def _catch_up(self) -> None:
        _repeat(self._calls[self._repeated :], self.planner)
        self._repeated = len(self._calls)

    def _name(self, trial: Trial) -> str:
        return self.planner.cluster.name(trial.configuration)


def _repeat(calls: Iterable[PlannerCall], planner: Decider) -> None:
    """Ask and tell a planner that has seen nothing the same as another; what it answers follows from that alone."""
    for call in calls:
        with contextlib.suppress(ConfigurationError):  # the other one was told so too
            match call:
                case Observed(trial, seen):
                    planner.observe(trial, seen)
                case Lost(node):
                    planner.lose(node)
                case Regained(node):
                    planner.regain(node)
                case LookAgain(changed, again):
                    planner.look_again(changed, again)
                case PlannerQuery(last=True):
                    planner.decide()
                case _:
                    planner.next_trial()
