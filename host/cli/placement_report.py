"""`csd-emu plan`: the structure that it prints with ``--json``, how a placement is planned, and its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import msgspec

from csd_emu.perfmodel.split.cut_costs import CutCosts
from csd_emu.perfmodel.split.split_problem import DeviceCost, HostPlace, SplitProblem
from csd_emu.profiles.calibration import CalibrationStore
from csd_emu.profiles.profile import End
from firmware_agent.common.units import format_bytes
from host.app.prepare import read_placement
from host.config.plugins.kinds import SPLIT_POLICY
from host.core.console import console, figures_table
from host.core.device_time import MODELLED, WALL
from host.core.figure_bands import IN_BRACKETS, describe_ends, format_band, format_ratio, stack_band
from host.core.summary import INSTRUCTIONS, Summary, name_clock
from host.policies.selection.selection_report import SelectionReport
from host.policies.split.cut_decision import CutDecision, CutRow
from host.training.split.decide_cut import decide_at, settle
from host.training.split.split_model import AUTO, NONE

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
        policy: that chose it.
        reason: in a sentence.
        notes: what else must be known, in sentences.
        cuts: from the latest to the earliest; the first one moves nothing.
        layer_costs: of each kind of device, those that train first, then of the host's part.
        at_ends: end of the profiles' bands, ``low`` or ``high`` -> layer that the host would begin with there, an
            empty text for none; nothing where seconds are the wall's.
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
    policy: str
    reason: str
    notes: list[str]
    cuts: list[CutRow]
    layer_costs: list[LayerCosts]
    at_ends: dict[str, str] = msgspec.field(default_factory=dict)


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """`csd-emu plan`: what a job would best be run with.

    Attributes:
        model, input_shape, array: what is planned for.
        placement: which layers move to the host; null if that was not asked for.
        devices: which devices train; null if that was not asked for.
        summary: of the run in which that was found out; null if nothing was started.
        applied: whether this run went on with the chosen devices.
        core_model: what a nanosecond of counted or modelled seconds stands for: one of ``instructions`` or ``cycles``.
    """

    model: str
    input_shape: list[int]
    array: str
    placement: CutReport | None
    devices: SelectionReport | None = None
    summary: Summary | None = None
    applied: bool = False
    core_model: str = INSTRUCTIONS


def placement_plan(
    request: PlacementRequest, situation: SplitProblem, decision: CutDecision, ends: Mapping[str, CutDecision]
) -> CutReport:
    """Return what a decision says, and how far it is open by what it is at the `ends` of the profiles' bands."""
    clock = WALL if request.wall else MODELLED
    rows = zip(decision.rows, *(there.rows for there in ends.values()), strict=True)
    return CutReport(
        clock=clock,
        drives=len(situation.remote),
        records=situation.records,
        link_bytes_per_second=situation.link.bytes_per_second,
        overlapped=decision.overlapped,
        policy=decision.policy,
        layer=decision.layer,
        drive_layers=decision.drive_layers,
        step_seconds=decision.step_seconds,
        unmoved_seconds=decision.unmoved_seconds,
        reason=decision.reason,
        notes=list(decision.notes),
        cuts=[CutRow.with_ends(*row) for row in rows] if ends else list(decision.rows),
        layer_costs=list_layer_costs(situation, clock),
        at_ends={end: there.layer or "" for end, there in ends.items()},
    )


def list_layer_costs(situation: SplitProblem, clock: str) -> list[LayerCosts]:
    """Return what the layers take on each kind of drive, and on the host; seconds are of `clock`."""
    amounts = CutCosts(situation)
    kinds = [
        *((situation.drives[place], count) for place, count in amounts.kinds),
        *((drive, 1) for drive in situation.drives if drive.local),
    ]
    drives = [_layer_costs(amounts, drive, drive.device, count, drive.batch_size, clock) for drive, count in kinds]
    return [*drives, _layer_costs(amounts, situation.host, _HOST_PART, 1, situation.records, clock)]


def _layer_costs(
    amounts: CutCosts, part: DeviceCost | HostPlace, device: str, alike: int, records: int, clock: str
) -> LayerCosts:
    names = [layer.name for layer in amounts.situation.layers]
    return LayerCosts(
        device=device,
        alike=alike,
        records=records,
        clock=clock,
        measured_clock=part.layer_clock or None,
        reason=part.layer_reason,
        layers=[
            LayerRow(*row) for row in zip(names, *(each.tolist() for each in amounts.pass_seconds(part)), strict=True)
        ],
    )


def plan_placement(job_path: Path, array_path: Path, store: CalibrationStore) -> PlanReport:
    """Return where a job's model is best cut on an array.

    Raises:
        ConfigurationError: a file breaks a rule, the job is not synchronous, or no cut fits.
        CalibrationError: how fast the devices are is not known.
        ModelError: the model cannot be looked at.
    """
    request = read_placement(job_path, array_path, store)
    asked = request.job.placement
    policy = asked if asked != NONE and asked in SPLIT_POLICY.names else AUTO
    tables = store.counting(request.config.core_model)
    choice = settle(request, tables, policy)
    ends = {} if request.wall else {end: decide_at(choice, end, tables) for end in get_args(End)}
    return PlanReport(
        model=request.job.model,
        input_shape=list(request.shape),
        array=request.config.name,
        placement=placement_plan(request, choice.situation, choice.decision, ends),
        core_model=request.config.core_model,
    )


# Of many cuts the best are shown; all are in --json.
SHOWN = 16
_COLUMNS = (
    "host begins\nwith",
    "step s",
    "drive s",
    "host s",
    "link/step",
    "bytes\nmoved",
    "compute\nmoved",
    "drive\nmemory",
    "",
)


def print_plan(report: PlanReport) -> None:
    """Print everything that was planned."""
    shape = "x".join(map(str, report.input_shape))
    if report.placement is not None:
        clock = name_clock(report.placement.clock, report.core_model)
        print_placement(report.placement, f"{report.model} at {shape} on {report.array}", clock)


def print_placement(plan: CutReport, title: str, clock: str) -> None:
    """Print a row for each of the best cuts, which one is chosen and why, and why others cannot be."""
    table = figures_table(f"Placement: {title}", _COLUMNS, left=(_COLUMNS[0], ""))
    shown = _best(plan)
    for row in shown:
        chosen = row.drive_layers == plan.drive_layers
        table.add_row(*_cells(row), "<- chosen" if chosen else _why_not(row), style="bold" if chosen else None)
    console.print(table)
    if left := sum(not row.refused for row in plan.cuts) - sum(not row.refused for row in shown):
        console.print(f"{left} more cuts are slower; --json has them all")
    brackets = f", {IN_BRACKETS}" if plan.at_ends else ""
    overlap = "overlaps what drives compute" if plan.overlapped else "does not overlap what drives compute"
    lines = [
        *(f"not before {names}: {reason}" for reason, names in _refused(plan.cuts)),
        f"clock of all seconds: {clock}{brackets}. {plan.drives} drives, {plan.records} records a step, a link of "
        f"{format_bytes(plan.link_bytes_per_second)}/s; the exchange {overlap}.",
        *map(_layers_line, plan.layer_costs),
        _verdict(plan),
        *(f"* {note}" for note in plan.notes),
    ]
    for line in lines:
        console.print(line, markup=False)


def _layers_line(costs: LayerCosts) -> str:
    """Return where the seconds of a device's layers come from."""
    alike = f" and {costs.alike - 1} alike" if costs.alike > 1 else ""
    if costs.measured_clock is None:
        how = f"shared out by arithmetic ({costs.reason})" if costs.reason else "shared out by arithmetic"
    elif costs.clock == costs.measured_clock:
        how = f"measured here ({costs.clock})"
    else:
        how = f"{costs.clock}, in proportion to what each was measured to take on a drive ({costs.measured_clock})"
    return f"seconds of layers on {costs.device}{alike}: {how}"


def _verdict(plan: CutReport) -> str:
    band = next(row.bands.get("step_seconds") for row in plan.cuts if row.drive_layers == plan.drive_layers)
    gain, ends = "", {end: _name(layer) for end, layer in plan.at_ends.items()}
    if plan.layer is not None and plan.unmoved_seconds is not None:
        ratio = f"{plan.unmoved_seconds / plan.step_seconds:.3g} times as fast as with nothing moved"
        gain = f", {format_ratio(ratio, plan.cuts[0].bands.get('step_seconds'), band)}"
    chosen = f"; {describe_ends(_name(plan.layer), ends)}" if ends else ""
    step = format_band(f"{plan.step_seconds:.4g} s", band)
    return f"{_name(plan.layer)}: a step takes {step}{gain}; {plan.reason}{chosen}"


def _name(layer: str | None) -> str:
    return f"the host's part begins with {layer}" if layer else "every layer stays on the drives"


def _why_not(row: CutRow) -> str:
    """Return why the policy's rule does not allow a cut; nothing if it does, or has none."""
    if row.relieves or row.refused:
        return ""
    return "does not relieve the wire" if row.heavy else "much computing"


def _best(plan: CutReport) -> list[CutRow]:
    """Return the cuts to show, in the order of the model: nothing moved, the chosen one, and the best of the others."""

    def rank(row: CutRow) -> tuple[bool, float]:
        kept = row.layer is None or row.drive_layers == plan.drive_layers
        lowest = row.step_seconds if row.step_seconds is not None else row.at_least_seconds
        return not kept, lowest if lowest is not None else float("inf")

    possible = [row for row in plan.cuts if not row.refused or row.layer is None]
    return sorted(sorted(possible, key=rank)[:SHOWN], key=lambda row: -row.drive_layers)


def _refused(cuts: Sequence[CutRow]) -> list[tuple[str, str]]:
    """Return (reason, layers) of cuts that cannot be; many in a row with one reason are put together."""
    groups = (
        (reason, [row.layer or "the end (nothing moved)" for row in group])
        for reason, group in groupby(cuts, key=lambda row: row.refused)
    )
    return [
        (reason, names[0] if len(names) == 1 else f"{names[-1]} to {names[0]} ({len(names)})")
        for reason, names in groups
        if reason
    ]


def _cells(row: CutRow) -> list[str]:
    """Return what a row shows; a band has lines of its own."""
    least, step = (">= ", "at_least_seconds") if row.step_seconds is None else ("", "step_seconds")
    seconds = {name: getattr(row, name) for name in (step, "drive_seconds", "host_seconds")}
    shown = ["-" if own is None else format_band(f"{own:.4g}", row.bands.get(name)) for name, own in seconds.items()]
    return [
        row.layer or "(nothing moved)",
        *map(stack_band, (shown[0] if shown[0] == "-" else f"{least}{shown[0]}", *shown[1:])),
        format_bytes(row.traffic_bytes),
        f"{row.moved_parameters:.1%}",
        f"{row.moved_compute:.1%}",
        format_bytes(row.drive_memory_bytes) if row.drive_memory_bytes else "-",
    ]
