"""Where the model of a run is cut."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from csd_emu.calibration import CalibrationStore
from csd_emu.paths import Paths
from csd_emu.placement.costs import Situation
from csd_emu.placement.decide import decide, decide_for
from csd_emu.placement.decision import Decision
from csd_emu.placement.table import MARGIN
from host.placement.placed import AUTO, NONE
from host.placement.request import PlacementRequest, of_run
from host.placement.situation import make_situation

if TYPE_CHECKING:
    from host.run_request import RunRequest

# So many cuts are decided on with the batches of the one before, until one is chosen with its own.
_ROUNDS = 3
_BEST_TRIED = "of the cuts that were tried, each with the batches planned for it, it has the most records a second"


@dataclass(frozen=True)
class Choice:
    """A decision, and what it was made in.

    Attributes:
        request: the job, with the batches that a run with this decision begins with.
        situation: with these batches.
        decision: in this situation.
    """

    request: PlacementRequest
    situation: Situation
    decision: Decision

    @property
    def records_per_second(self) -> float:
        """Predicted records of all devices together; steps of unequal batches are compared by it."""
        return self.situation.records / self.decision.step_seconds


def choose_placement(
    request: RunRequest | PlacementRequest, placement: str = AUTO, store: CalibrationStore | None = None
) -> Decision:
    """Return which layers of a job move to the host.

    Args:
        request: a synchronous run, read and checked, or what `read_placement` has read.
        placement: ``auto`` for the best cut, ``none`` for no cut, or the name of the layer that the host begins with.
        store: the calibration tables; None for the user's and the shipped ones.

    Raises:
        ConfigurationError: the job is not synchronous, no cut fits, or the one that is asked for cannot be.
        CalibrationError: how fast the devices are is not known.
        ModelError: the model cannot be looked at.
    """
    tables = store or CalibrationStore(Paths.default().calibration)
    asked = request if isinstance(request, PlacementRequest) else of_run(request, tables)
    return settle(asked, tables, placement).decision


def settle(request: PlacementRequest, store: CalibrationStore, placement: str = AUTO) -> Choice:
    """Return what `choose_placement` does, decided with the batches that the run will begin with.

    A tuner plans batches for what the drives compute, and this is known once the cut is. So a cut that is chosen with
    other batches than its own is decided on again with its own, until one is chosen with these, `_ROUNDS` times at
    most. Of the cuts that were chosen on the way and nothing moved, each with its own batches, the one with the most
    records per second is taken; a cut must win `MARGIN`.
    """
    situation = make_situation(request, store)
    if placement == AUTO:
        first = Choice(request, situation, decide(situation))
        return first if first.decision.layer is None else _settle_cut(first, store)
    layer = None if placement == NONE else placement
    first = Choice(request, situation, decide_for(situation, layer))
    again = first if layer is None else _with_batches_of(first, layer, store)
    return first if again is first else replace(again, decision=decide_for(again.situation, layer))


def _settle_cut(first: Choice, store: CalibrationStore) -> Choice:
    current, rivals = first, dict[str, Choice]()
    for _ in range(_ROUNDS):
        layer = current.decision.layer
        if layer is None or layer in rivals:
            break
        again = _with_batches_of(current, layer, store)
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


def _unmoved(first: Choice, reason: str) -> Choice:
    return replace(first, decision=decide_for(first.situation, None, reason))


def _with_batches_of(current: Choice, layer: str, store: CalibrationStore) -> Choice:
    """Return the decision with the batches that a run with this cut begins with; the same one if it has them."""
    planned = current.request.batches_for
    if planned is None or (batches := planned(layer)) == current.request.batches:
        return current
    request = replace(current.request, batches=batches)
    situation = make_situation(request, store, current.situation.layers)
    return Choice(request, situation, decide(situation))


def explain(decision: Decision) -> list[str]:
    """Return what must be known of a run whose cut was left to us, in sentences."""
    chosen = "every layer stays on the drives" if decision.layer is None else f"cut before {decision.layer!r}"
    return [f"placement: auto: {chosen}: {decision.reason} (expected)", *decision.notes]
