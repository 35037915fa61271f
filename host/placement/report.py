"""What `csd-emu plan` prints with ``--json``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from csd_emu.placement.costs import Situation
from csd_emu.placement.decision import CutRow, Decision
from host.device_time import MODELLED, WALL
from host.planner.report import DevicePlan
from host.summary import Summary

if TYPE_CHECKING:  # it imports torch
    from host.placement.request import PlacementRequest


class PlacementPlan(msgspec.Struct, frozen=True, kw_only=True):
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
    placement: PlacementPlan | None
    devices: DevicePlan | None = None
    summary: Summary | None = None
    applied: bool = False


def placement_plan(request: PlacementRequest, situation: Situation, decision: Decision) -> PlacementPlan:
    """Return what a decision says."""
    return PlacementPlan(
        clock=WALL if request.wall else MODELLED,
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
    )
