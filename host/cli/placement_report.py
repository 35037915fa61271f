"""`csd-emu plan`: the structure that it prints with ``--json``, and how a placement is planned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from csd_emu.perfmodel.split.cut_costs import CutCosts
from csd_emu.perfmodel.split.split_problem import DeviceCost, HostPlace, SplitProblem
from csd_emu.profiles.calibration import CalibrationStore
from host.app.prepare import read_placement
from host.core.device_time import MODELLED, WALL
from host.core.summary import Summary
from host.policies.selection.selection_report import SelectionReport
from host.policies.split.cut_decision import CutDecision, CutRow
from host.training.split.decide_cut import settle

if TYPE_CHECKING:  # it imports torch
    from host.training.split.split_request import PlacementRequest

_HOST_PART = "host"


class LayerRow(msgspec.Struct, frozen=True):
    """A layer's share of a device's step, all its records at once."""

    name: str
    forward_seconds: float
    backward_seconds: float


class LayerCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What each layer takes on a device; they add up to its forward and backward seconds.

    Attributes:
        device: its name, or ``host`` for the host's part.
        alike: how many devices are like it, itself among them.
        records: of its step; of the host, of all devices together.
        clock: that the seconds are of: ``modelled`` from a table's, or ``wall``.
        measured_clock: by which each layer was measured on a drive, or here: ``counted`` or ``wall``; null if a step's
            seconds are shared out over the layers by arithmetic.
        reason: why they are; empty if they are not.
        layers: in forward order.
    """

    device: str
    alike: int
    records: int
    clock: str
    measured_clock: str | None
    reason: str
    layers: list[LayerRow]


class CutReport(msgspec.Struct, frozen=True, kw_only=True):
    """Where the model is cut, and what that rests on; nothing was trained.

    Attributes:
        clock: that the seconds are of.
        drives: how many take part.
        records: of a step, all together.
        link_bytes_per_second: of the host's side, each way.
        overlapped: whether the exchange overlaps what drives compute.
        layer: that the host begins with; null: every layer stays on the drives.
        drive_layers: how many the drives keep.
        step_seconds: predicted, with this cut.
        unmoved_seconds: predicted with nothing moved; null if that does not fit.
        reason: in a sentence.
        notes: what else must be known, in sentences.
        cuts: from the latest to the earliest; the first one moves nothing.
        layer_costs: of each kind of device, those that train first, then of the host's part.
    """

    clock: str
    drives: int
    records: int
    link_bytes_per_second: float
    overlapped: bool
    layer: str | None
    drive_layers: int
    step_seconds: float
    unmoved_seconds: float | None
    reason: str
    notes: list[str]
    cuts: list[CutRow]
    layer_costs: list[LayerCosts]


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """`csd-emu plan`: what a job would best be run with.

    Attributes:
        model, input_shape, array: what is planned for.
        placement: which layers move to the host; null if that was not asked for.
        devices: which devices train; null if that was not asked for.
        summary: of the run in which that was found out; null if nothing was started.
        applied: whether this run went on with the chosen devices.
    """

    model: str
    input_shape: list[int]
    array: str
    placement: CutReport | None
    devices: SelectionReport | None = None
    summary: Summary | None = None
    applied: bool = False


def placement_plan(request: PlacementRequest, situation: SplitProblem, decision: CutDecision) -> CutReport:
    """Return what a decision says."""
    clock = WALL if request.wall else MODELLED
    return CutReport(
        clock=clock,
        drives=len(situation.remote),
        records=situation.records,
        link_bytes_per_second=situation.link.bytes_per_second,
        overlapped=decision.overlapped,
        layer=decision.layer,
        drive_layers=decision.drive_layers,
        step_seconds=decision.step_seconds,
        unmoved_seconds=decision.unmoved_seconds,
        reason=decision.reason,
        notes=list(decision.notes),
        cuts=list(decision.rows),
        layer_costs=list_layer_costs(situation, clock),
    )


def list_layer_costs(situation: SplitProblem, clock: str) -> list[LayerCosts]:
    """Return what the layers take on each kind of drive, and on the host; seconds are of `clock`."""
    amounts = CutCosts(situation)
    kinds = [(situation.drives[place], count) for place, count in amounts.kinds]
    kinds += [(drive, 1) for drive in situation.drives if drive.local]
    drives = [_layer_costs(amounts, drive, drive.device, count, drive.batch_size, clock) for drive, count in kinds]
    return [*drives, _layer_costs(amounts, situation.host, _HOST_PART, 1, situation.records, clock)]


def _layer_costs(
    amounts: CutCosts, part: DeviceCost | HostPlace, device: str, alike: int, records: int, clock: str
) -> LayerCosts:
    names = [layer.name for layer in amounts.situation.layers]
    seconds = zip(names, *(each.tolist() for each in amounts.pass_seconds(part)), strict=True)
    return LayerCosts(
        device=device,
        alike=alike,
        records=records,
        clock=clock,
        measured_clock=part.layer_clock or None,
        reason=part.layer_reason,
        layers=[LayerRow(*row) for row in seconds],
    )


def plan_placement(job_path: Path, array_path: Path, store: CalibrationStore) -> PlanReport:
    """Return where a job's model is best cut on an array.

    Raises:
        ConfigurationError: a file breaks a rule, the job is not synchronous, or no cut fits.
        CalibrationError: how fast the devices are is not known.
        ModelError: the model cannot be looked at.
    """
    request = read_placement(job_path, array_path, store)
    choice = settle(request, store)
    return PlanReport(
        model=request.job.model,
        input_shape=list(request.shape),
        array=request.config.name,
        placement=placement_plan(request, choice.situation, choice.decision),
    )
