"""Choice of the cut for a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from csd_emu.perfmodel.split.split_problem import SplitProblem
from csd_emu.profiles.calibration import CalibrationStore
from csd_emu.profiles.profile import End
from host.config.plugins.kinds import SPLIT_POLICY
from host.policies.split.choose_cut import decide_for
from host.policies.split.cut_decision import CutDecision, SplitPolicy
from host.policies.split.cut_table import MARGIN, CutTable
from host.training.split.make_problem import make_situation
from host.training.split.split_model import AUTO
from host.training.split.split_request import PlacementRequest

Decide = Callable[[SplitProblem], CutDecision]
# So many cuts are decided on with the batches of the one before, until one is chosen with its own.
_ROUNDS = 3
_BEST_TRIED = "of the cuts that were tried, each with the batches planned for it, it has the most records a second"


@dataclass(frozen=True)
class CutChoice:
    """A decision, and what it was made in.

    Attributes:
        request: the job, with the batches that a run with this decision begins with.
        situation: with these batches.
        decision: in this situation.
    """

    request: PlacementRequest
    situation: SplitProblem
    decision: CutDecision

    @property
    def records_per_second(self) -> float:
        """Predicted records of all devices together; steps of unequal batches are compared by it."""
        return self.situation.records / self.decision.step_seconds


def choose_placement(request: PlacementRequest, policy: str, store: CalibrationStore) -> CutDecision:
    """Return which layers of a job move to the host.

    Args:
        request: a synchronous job on an array.
        policy: the name of a split policy.
        store: the calibration tables.

    Raises:
        ConfigurationError: the job is not synchronous, or no cut fits.
        CalibrationError: how fast the devices are is not known.
        ModelError: the model cannot be looked at.
    """
    return settle(request, store, policy).decision


def settle(request: PlacementRequest, store: CalibrationStore, policy: str = AUTO) -> CutChoice:
    """Return what `choose_placement` does, decided with the batches that the run will begin with.

    A tuner plans batches for what the drives compute, and this is known once the cut is. So a cut that is chosen with
    other batches than its own is decided on again with its own, until one is chosen with these, `_ROUNDS` times at
    most. Of the cuts that were chosen on the way and nothing moved, each with its own batches, the one with the most
    records per second is taken; a cut must win `MARGIN`.
    """
    situation = make_situation(request, store)
    chooser: SplitPolicy = SPLIT_POLICY.load(policy)()
    first = CutChoice(request, situation, chooser.decide(situation))
    choice = first if first.decision.layer is None else _settle_cut(first, store, chooser.decide)
    return replace(choice, decision=replace(choice.decision, policy=policy))


def decide_at(choice: CutChoice, end: End, store: CalibrationStore) -> CutDecision:
    """Return the decision in the same situation with all profiles at one end of their bands.

    Its rows have the seconds of all cuts whose steps are known in the choice.
    """
    table = CutTable(make_situation(replace(choice.request, end=end), store, choice.situation.layers), 0.0)
    known = [row.drive_layers for row in choice.decision.rows if row.step_seconds is not None]
    policy: SplitPolicy = SPLIT_POLICY.load(choice.decision.policy)()
    return replace(policy.decide(table.situation), rows=table.rows(table.work_out(known)))


def _settle_cut(first: CutChoice, store: CalibrationStore, decide: Decide) -> CutChoice:
    current, rivals = first, dict[str, CutChoice]()
    for _ in range(_ROUNDS):
        layer = current.decision.layer
        if layer is None or layer in rivals:
            break
        again = _with_batches_of(current, layer, store, decide)
        if again.decision.layer == layer:
            rivals[layer] = again
            break
        if not next(row for row in again.decision.rows if row.layer == layer).refused:
            rivals[layer] = replace(again, decision=decide_for(again.situation, layer, _BEST_TRIED))
        current = again
    best = max(rivals.values(), key=lambda each: each.records_per_second, default=first)
    if not rivals or first.decision.unmoved_seconds is None:
        return best if rivals else _unmoved(first, "no cut fits with the batches that are planned for it")
    unmoved = first.situation.records / first.decision.unmoved_seconds
    if best.records_per_second > (1 + MARGIN) * unmoved:
        return best
    return _unmoved(
        first,
        f"{unmoved:.4g} records a second, and {best.records_per_second:.4g} with the best cut and the batches that are "
        "planned for it",
    )


def _unmoved(first: CutChoice, reason: str) -> CutChoice:
    return replace(first, decision=decide_for(first.situation, None, reason))


def _with_batches_of(current: CutChoice, layer: str, store: CalibrationStore, decide: Decide) -> CutChoice:
    """Return the decision with the batches that a run with this cut begins with; the same one if it has them."""
    planned = current.request.batches_for
    if planned is None or (batches := planned(layer)) == current.request.batches:
        return current
    request = replace(current.request, batches=batches)
    situation = make_situation(request, store, current.situation.layers)
    return CutChoice(request, situation, decide(situation))


def explain(decision: CutDecision) -> list[str]:
    """Return what must be known of a run whose cut was left to a policy, in sentences."""
    chosen = "every layer stays on the drives" if decision.layer is None else f"cut before {decision.layer!r}"
    return [f"placement: {decision.policy}: {chosen}: {decision.reason} (expected)", *decision.notes]
