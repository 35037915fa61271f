"""A tuner that first finds out which devices should train, in steps that count, and hands over to another. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec
import numpy as np

from csd_emu.timeline import HOST
from firmware_agent.errors import ConfigurationError
from host.planner.cluster import Configuration, Seen, Trial
from host.planner.decider import Decided, Decider, MakeInner, Tried
from host.planner.replay import RecordedPlanner
from host.planner.rules import Plan
from host.tuning.base import Batches, Floats, Retune, StepCost, Tuner

# A trial whose steps are others than it asked for, by the way of epochs that end, is given up after so many of them.
_MOST_ODD = 8


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
    seen: list[Seen] = field(default_factory=list)
    odd: int = 0


class PlanningTuner:
    """A `host.tuning.base.Tuner` and `Chooser`. Devices that were not chosen rest: no batch, no probe.

    Planning begins when it is first asked or told something, not before: a resumed run restores what was decided.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        first: Sequence[int],
        make_planner: Callable[[], Decider],
        make_inner: MakeInner,
        on_decided: Callable[[Decided], None],
        on_note: Callable[[str], None] = lambda _: None,
        cold: Collection[str] = (),
        handed_over: bool = False,
    ) -> None:
        """Prepare; the first trial begins with the first question.

        Args:
            nodes: names, in participant order.
            first: (devices,) batches of the job's plan, for as long as nothing can be decided on.
            make_planner: makes a planner that has seen nothing.
            make_inner: makes the tuner that goes on.
            on_decided: told what was decided, and again if all that was chosen is lost.
            on_note: told what people should know, in sentences.
            cold: nodes whose first step says nothing, a stopwatch having seen torch warm up in it.
            handed_over: whether its state has all of a planning that is under way: other servers plan alike, and one
                that takes over the state of another goes on as that one does.
        """
        self._nodes, self._first = list(nodes), np.array(first, np.int64)
        self._new_planner, self._make_inner, self._handed_over = make_planner, make_inner, handed_over
        self._on_decided, self._on_note = on_decided, on_note
        self._tell: Callable[[Callable[[], None]], object] = _at_once
        self._colds = self._cold = frozenset(cold)
        self._planner = self._make_planner()
        self._here = np.ones(len(self._nodes), bool)
        self._tried: list[Tried] = []
        self._lost: list[str] = []
        self._trying: _Trying | None = None
        self._inner: Tuner | None = None
        # Numbers of the nodes that train, and their batches to begin with.
        self._chosen: dict[int, int] = {}
        self._step = 0
        self._error: ConfigurationError | None = None
        self._begun = False

    @property
    def error(self) -> ConfigurationError | None:
        """Why nothing could be decided on; None if it could, or may yet."""
        self.begin()
        return self._error

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
        if self._trying is None:
            lost = [node in self._lost for node in self._nodes]
            return np.where(self._here & ~np.array(lost), self._first, 0)
        wanted = [self._trying.wanted.get(node, 0) for node in self._nodes]
        return np.where(self._here, np.array(wanted, np.int64), 0)

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
    def pondering(self) -> bool:
        """Whether it is still to be decided who trains; this begins nothing, see `resting`."""
        return self._inner is None and self._error is None

    def idle(self) -> list[str]:
        """Return the names of the drives that take no part as of now."""
        pairs = zip(self._nodes, self.batches, strict=True)
        return [node for node, batch in pairs if not batch and node != HOST]

    def begin(self) -> None:
        """Begin the first trial, or decide without one, unless that was done or restored."""
        if not self._begun:
            self._begun = True
            self._go_on()

    @contextmanager
    def telling_later(self) -> Iterator[None]:
        """Keep what is to be told inside the block for its end; after an error nobody is left to be told."""
        untold: list[Callable[[], None]] = []
        self._tell = untold.append
        yield
        self._tell = _at_once
        for tell in untold:
            tell()

    def probes(self, step: int) -> Batches:
        """Return (devices,) records that parked ones of the chosen devices compute beside this step."""
        self.begin()
        nothing = np.zeros(len(self._nodes), np.int64)
        return nothing if self._inner is None else self._spread(self._inner.probes(step), nothing)

    def watch(self, cost: StepCost) -> None:
        """Count a step for the trial under way if it had its batches; end the trial if one of its devices failed."""
        cold, self._cold = self._cold, self._cold - cost.compute_seconds.keys()
        self.begin()
        trying = self._trying
        if trying is None:
            return
        if failed := [node for node in trying.wanted if node in cost.missing]:
            self._end_trial()
            for node in failed:
                self._lose(node, "failed in pre-training")
        elif dict(cost.records) == trying.wanted:
            if cold.isdisjoint(trying.wanted):
                trying.seen.append(Seen(dict(cost.compute_seconds), cost.array_seconds, sum(cost.joules.values())))
        else:
            trying.odd += 1

    def observe(self, step: int, compute_seconds: Floats, steps_left: int | None = None) -> Retune | None:
        """Take what a step cost; return the batches of the next trial, or of what is decided, when they are due."""
        self.begin()
        self._step = step
        if self._inner is not None:
            retune = self._inner.observe(step, np.asarray(compute_seconds)[list(self._chosen)], steps_left)
            return None if retune is None else self._widen(retune)
        if self._error is not None:
            return None
        before, trying = self.batches, self._trying
        last = steps_left == 0
        if trying is not None and trying.odd > _MOST_ODD + 2 * trying.trial.steps:
            self._note(_told_odd(trying, self._name(trying.trial)))
            last = True
        if last or (trying is not None and len(trying.seen) >= trying.trial.steps):
            self._end_trial()
        reason = self._go_on(last)
        return self._retune(before, reason) if reason else None

    def leave(self, device: int) -> Retune:
        """Note that a device is gone; a trial that it was part of ends, and it takes part in no other."""
        before, node = self.batches, self._nodes[device]
        self._here[device] = False
        if self._inner is not None:
            return self._leave_chosen(device)
        if self._trying is not None and node in self._trying.wanted:
            self._end_trial()
        self._lose(node, "left in pre-training")
        reason = self._go_on()
        return self._retune(before, f"{node} left{'; ' * bool(reason)}{reason}")

    def join(self, device: int) -> Retune:
        """Note that a device is back: it trains if it was chosen."""
        self.begin()
        self._here[device] = True
        if self._inner is not None and device in self._chosen:
            return self._widen(self._inner.join(list(self._chosen).index(device)))
        if self._handed_over and self._inner is None:
            return self._begin_again(device)
        return self._retune(self.batches, f"{self._nodes[device]} is back; it was not chosen")

    def possible_images_per_second(self) -> float:
        """Return what the inner tuner says; 0 while planning."""
        self.begin()
        return 0.0 if self._inner is None else self._inner.possible_images_per_second()

    def finish(self) -> None:
        """Decide with what is known, if that was not done yet: the run has ended."""
        if not self.decided:
            self._end_trial()
            self._go_on(last=True)

    def state(self) -> dict[str, Any]:
        """Return what was decided; planning that is under way begins again, unless it is to be handed over."""
        here: dict[str, Any] = {"here": self._here.tolist()}
        if isinstance(self._planner, RecordedPlanner):
            here["planning"] = self._under_way(self._planner)
        if self._inner is None:
            return here
        chosen = {"nodes": list(self._chosen), "batches": list(self._chosen.values())}
        return here | {"chosen": chosen, "inner": self._inner.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`; what another server decided meanwhile is told here too."""
        decided = self._inner is not None
        self._here = np.array(state["here"], bool)
        self._planner, self._trying = self._make_planner(), None
        self._tried.clear()
        self._cold = self._colds
        self._begun = "chosen" in state
        if isinstance(self._planner, RecordedPlanner):
            self._take_over(self._planner, state["planning"])
        else:
            self._lose_absent()
        if "chosen" not in state:
            return
        chosen = state["chosen"]
        self._hand_over(dict(zip(map(int, chosen["nodes"]), map(int, chosen["batches"]), strict=True)))
        if self._inner is not None:
            self._inner.load_state(state["inner"])
        if self._handed_over and not decided:
            self._tell_decided(self._planner.decide())

    def _make_planner(self) -> Decider:
        planner = self._new_planner()
        return RecordedPlanner(planner) if self._handed_over else planner

    def _lose_absent(self) -> None:
        for number in np.flatnonzero(~self._here):
            self._lose(self._nodes[number], "was lost before")

    def _begin_again(self, device: int) -> Retune:
        """Plan anew with a device that came when planning was under way."""
        before = self.batches
        self._planner, self._trying, self._error = self._make_planner(), None, None
        self._tried.clear()
        self._lost.clear()
        self._lose_absent()
        reason = self._go_on()
        return self._retune(before, f"{self._nodes[device]} came{'; ' * bool(reason)}{reason}")

    def _under_way(self, planner: RecordedPlanner) -> dict[str, Any]:
        """Return where planning stands, as JSON takes it."""
        trying = None if self._trying is None else msgspec.to_builtins(self._trying)
        tried = msgspec.to_builtins(self._tried)
        found = {"calls": planner.state(), "trying": trying, "tried": tried, "lost": list(self._lost)}
        return found | {"cold": sorted(self._cold), "step": self._step, "begun": self._begun}

    def _take_over(self, planner: RecordedPlanner, state: Mapping[str, Any]) -> None:
        """Go on with the planning of another server."""
        planner.load_state(state["calls"])
        self._trying = None if state["trying"] is None else msgspec.convert(state["trying"], _Trying)
        self._tried[:] = msgspec.convert(state["tried"], list[Tried])
        self._lost[:] = map(str, state["lost"])
        self._cold, self._step = frozenset(state["cold"]), int(state["step"])
        self._begun, self._error = bool(state["begun"]), None

    def _go_on(self, last: bool = False) -> str:
        """Begin the next trial, or decide, unless a trial is under way; return what was begun, for people."""
        if self._trying is not None or self._error is not None:
            return ""
        trial = None if last else self._planner.next_trial()
        if trial is None:
            return self._decide()
        wanted = self._by_node(trial.configuration, trial.batches)
        self._trying = _Trying(trial, wanted)
        self._note(f"pre-training of {self._name(trial)} for {trial.steps} steps: {trial.why}")
        return f"pre-training of {self._name(trial)}"

    def _end_trial(self) -> None:
        trying, self._trying = self._trying, None
        if trying is not None and trying.seen:
            self._tried.append(Tried(trying.trial, tuple(trying.seen)))
            self._planner.observe(trying.trial, trying.seen)

    def _decide(self) -> str:
        self._inner, self._trying = None, None
        try:
            plan = self._planner.decide()
        except ConfigurationError as error:
            self._error = error
            return f"nothing was chosen: {error}"
        batches = self._by_node(plan.chosen.configuration, plan.chosen.batches)
        numbers = {self._nodes.index(node): batch for node, batch in batches.items()}
        self._hand_over(dict(sorted(numbers.items())))
        self._tell_decided(plan)
        name = self._planner.cluster.name(plan.chosen.configuration)
        return "; ".join([f"{name} was chosen", *plan.reasons[:1]])

    def _tell_decided(self, plan: Plan) -> None:
        batches = self._by_node(plan.chosen.configuration, plan.chosen.batches)
        decided = Decided(plan, batches, tuple(self._tried), self._step, tuple(self._lost))
        self._tell(partial(self._on_decided, decided))

    def _hand_over(self, chosen: dict[int, int]) -> None:
        self._chosen = chosen
        self._inner = self._make_inner(list(chosen), list(chosen.values()))

    def _leave_chosen(self, device: int) -> Retune:
        """Note that a device is gone; if nobody of the chosen is left, decide again among the others."""
        before, node = self.batches, self._nodes[device]
        if device not in self._chosen or self._inner is None:
            return self._retune(before, f"{node} left; it was not chosen")
        retune = self._widen(self._inner.leave(list(self._chosen).index(device)))
        if self._here[list(self._chosen)].any():
            return retune
        for number in self._chosen:
            self._lose(self._nodes[number], "was chosen and left")
        reason = self._decide() if self._error is None else str(self._error)
        return self._retune(before, f"all that were chosen are gone; {reason}")

    def _lose(self, node: str, why: str) -> None:
        if node in self._lost:
            return
        self._lost.append(node)
        self._note(f"{node} {why}: it is in no plan any more")
        try:
            self._planner.lose(node)
        except ConfigurationError as error:  # nobody is left of those who may train
            self._error, self._inner, self._trying = error, None, None

    def _by_node(self, configuration: Configuration, batches: Sequence[int]) -> dict[str, int]:
        """Return node -> records per step, of those that take part."""
        kinds = self._planner.cluster.kinds
        of_kind = {node: batch for kind, batch in zip(kinds, batches, strict=True) for node in kind.nodes}
        return {node: of_kind[node] for node in self._planner.choose_nodes(configuration)}

    def _note(self, text: str) -> None:
        self._tell(partial(self._on_note, text))

    def _name(self, trial: Trial) -> str:
        return self._planner.cluster.name(trial.configuration)

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


def _at_once(tell: Callable[[], None]) -> None:
    tell()


def _told_odd(trying: _Trying, name: str) -> str:
    return (
        f"pre-training of {name}: {trying.odd} steps had other batches than it asked for (an epoch has too few records "
        f"for its {sum(trying.wanted.values())}, or devices came and went): what is known by now decides; have smaller "
        "batches, with batch_size or sync.tuning"
    )
