"""Choice of the cut for a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from csd_emu.perfmodel.split.split_problem import LayerSplitCost, SplitProblem
from csd_emu.profiles.calibration import CalibrationStore
from csd_emu.profiles.profile import End
from firmware_agent.common.errors import ConfigurationError
from host.config.plugins.kinds import SPLIT_POLICY
from host.policies.split.choose_cut import decide_for
from host.policies.split.cut_decision import CutDecision, SplitPolicy
from host.policies.split.cut_table import MARGIN, CutTable
from host.training.split.make_problem import make_situation
from host.training.split.split_model import AUTO
from host.training.split.split_request import PlacementRequest

Decide = Callable[[SplitProblem], CutDecision]
# Cuts are looked for with the whole model's batches and these multiples of them: those of a cut may be far from both.
_SCALES = (0.25, 4.0)
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

    A tuner plans batches for what the drives compute, and this is known once the cut is. So cuts are decided on with
    the whole model's batches, with more and with fewer, and each one that is chosen with the batches planned for it. Of
    all that were chosen so and nothing moved, each with its own batches, the one with the most records per second is
    taken; a cut must win `MARGIN`.
    """
    situation = make_situation(request, store)
    chooser: SplitPolicy = SPLIT_POLICY.load(policy)()
    first = CutChoice(request, situation, chooser.decide(situation))
    choice = first if request.batches_for is None else _settle_cut(first, request.batches_for, store, chooser.decide)
    return replace(choice, decision=replace(choice.decision, policy=policy))


def choice_for(
    request: PlacementRequest, store: CalibrationStore, layer: str | None, layers: tuple[LayerSplitCost, ...]
) -> CutChoice:
    """Return what a run would be with this cut, None for nothing moved, with the batches planned for it.

    `layers` are the model's.

    Raises:
        ConfigurationError: the cut does not fit.
    """
    planned = request.batches if layer is None or request.batches_for is None else request.batches_for(layer)
    request = replace(request, batches=planned)
    situation = make_situation(request, store, layers)
    return CutChoice(request, situation, decide_for(situation, layer))


def decide_at(choice: CutChoice, end: End, store: CalibrationStore) -> CutDecision:
    """Return the decision in the same situation with all profiles at one end of their bands.

    Its rows have the seconds of all cuts whose steps are known in the choice.
    """
    table = CutTable(make_situation(replace(choice.request, end=end), store, choice.situation.layers), 0.0)
    known = [row.drive_layers for row in choice.decision.rows if row.step_seconds is not None]
    policy: SplitPolicy = SPLIT_POLICY.load(choice.decision.policy)()
    return replace(policy.decide(table.situation), rows=table.rows(table.work_out(known)))


def _settle_cut(
    first: CutChoice, planned: Callable[[str], Mapping[str, int]], store: CalibrationStore, decide: Decide
) -> CutChoice:
    rivals = dict[str, CutChoice]()
    begun = first.request.batches
    tried = [begun, *({node: max(1, round(by * batch)) for node, batch in begun.items()} for by in _SCALES)]
    for batches in tried:  # which grow on the way
        with suppress(ConfigurationError):  # with these batches nothing fits
            layer = (
                first.decision
                if batches == first.request.batches
                else decide(_with_batches(first, batches, store).situation)
            ).layer
            if layer is not None and layer not in rivals:
                own = _with_batches(first, planned(layer), store)
                rivals[layer] = replace(own, decision=decide_for(own.situation, layer, _BEST_TRIED))
                tried += [own.request.batches] * (own.request.batches not in tried)
    best = max(rivals.values(), key=lambda each: each.records_per_second, default=first)
    if not rivals and first.decision.layer is None:
        return first
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


def _with_batches(first: CutChoice, batches: Mapping[str, int], store: CalibrationStore) -> CutChoice:
    """Return the same job with other batches; the decision is still the first one's."""
    request = replace(first.request, batches=batches)
    return replace(first, request=request, situation=make_situation(request, store, first.situation.layers))


def explain(decision: CutDecision) -> list[str]:
    """Return what must be known of a run whose cut was left to a policy, in sentences."""
    chosen = "every layer stays on the drives" if decision.layer is None else f"cut before {decision.layer!r}"
    return [f"placement: {decision.policy}: {chosen}: {decision.reason} (expected)", *decision.notes]
