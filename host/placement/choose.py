"""Where the model of a run is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from csd_emu.calibration import CalibrationStore
from csd_emu.paths import Paths
from csd_emu.placement.costs import Situation
from csd_emu.placement.decide import decide, decide_for
from csd_emu.placement.decision import Decision
from host.placement.request import PlacementRequest, of_run
from host.placement.situation import make_situation

if TYPE_CHECKING:
    from host.run_request import RunRequest

AUTO, NONE = "auto", "none"


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
    return choose_in(asked, make_situation(asked, tables), placement)


def choose_in(request: PlacementRequest, situation: Situation, placement: str = AUTO) -> Decision:
    """Return what `choose_placement` does, in the situation of a request."""
    if placement != AUTO:
        return decide_for(situation, None if placement == NONE else placement)
    return decide(situation)


def explain(decision: Decision) -> list[str]:
    """Return what must be known of a run whose cut was left to us, in sentences."""
    chosen = "every layer stays on the drives" if decision.layer is None else f"cut before {decision.layer!r}"
    return [f"placement: auto: {chosen}: {decision.reason} (expected)", *decision.notes]
