"""Part of the report on a synchronous run: phases, decisions, steps that were out of the ordinary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from firmware_agent.common.units import format_bytes
from host.core.records import RoundRecord, StepRecord
from host.monitoring.report.formats import format_number, format_seconds
from host.monitoring.report.run_decisions import RunDecision
from host.monitoring.report.step_spans import (
    StepSpan,
    list_phases,
    list_retunes,
    list_steps,
    mean_imbalance,
    share_of_possible,
)
from host.monitoring.report.tiles import Tile

_MOST_ROWS = 60


@dataclass(frozen=True)
class SyncReport:
    """A synchronous run in figures; of long tables the last rows.

    Attributes:
        steps: in all.
        phases: before, during and after disturbances, or between retunes.
        hidden_phases: how many earlier ones are left out, as are the next two.
        decisions: of all tuners.
        hidden_decisions: see above.
        unusual: steps with devices that were late or lost, or with slices of such.
        hidden_unusual: see above.
        late_devices: device -> steps in which it was late.
    """

    steps: int
    phases: list[StepSpan]
    hidden_phases: int
    decisions: list[RunDecision]
    hidden_decisions: int
    unusual: list[StepRecord]
    hidden_unusual: int
    late_devices: dict[str, int]


def describe_steps(rounds: Sequence[RoundRecord], decisions: Sequence[RunDecision]) -> SyncReport | None:
    """Return what there is to say of the steps, and of what was decided in them; None of a run without any."""
    if not (steps := list_steps(rounds)):
        return None
    phases = list_phases(rounds)
    unusual = [step for step in steps if step.late or step.lost or step.mixed]
    return SyncReport(
        steps=len(steps),
        phases=phases[-_MOST_ROWS:],
        hidden_phases=max(0, len(phases) - _MOST_ROWS),
        decisions=list(decisions[-_MOST_ROWS:]),
        hidden_decisions=max(0, len(decisions) - _MOST_ROWS),
        unusual=unusual[-_MOST_ROWS:],
        hidden_unusual=max(0, len(unusual) - _MOST_ROWS),
        late_devices=Counter(name for step in steps for name in step.late),
    )


def step_tiles(rounds: Sequence[RoundRecord], clock: str) -> list[Tile]:
    """Return the headline figures of the steps; none of a run without any."""
    steps, retunes = list_steps(rounds), list_retunes(rounds)
    if not steps:
        return []
    share, basis = share_of_possible(steps), "by tables, scaled by speeds observed"
    worst = max(step.imbalance for step in steps)
    disturbed = sum(bool(step.disturbed) for step in steps)
    return [
        *(
            []
            if share is None
            else [Tile("of what was possible", f"{share:.1%}", f"records, by compute ({clock})", basis)]
        ),
        Tile(
            "imbalance of steps",
            f"{mean_imbalance(steps):.1%}",
            f"of the slowest device's compute ({clock})",
            f"mean of {len(steps):,} steps; at worst {worst:.1%}",
        ),
        *_noise_tiles(rounds),
        *_placement_tiles(steps),
        Tile(
            "retunes",
            str(len(retunes)),
            "times batch sizes changed",
            f"{format_number(disturbed)} steps with competing work",
        ),
    ]


def _noise_tiles(rounds: Sequence[RoundRecord]) -> list[Tile]:
    """Return the last round's gradient noise scale; nothing if it is not known."""
    if (records := rounds[-1].gradient_noise_records) is None:
        return []
    largest = max((step.samples for step in rounds[-1].steps), default=0)
    unit, note = "records: larger steps hardly save steps", f"as of the last step; the largest had {largest:,} records"
    return [Tile("gradient noise scale", format_number(records), unit, note)]


def _placement_tiles(steps: Sequence[StepRecord]) -> list[Tile]:
    """Return what the host had of the model, and what crossed for it; nothing of a model that was whole."""
    if not (placed := [step.placement for step in steps if step.placement is not None]):
        return []
    last = placed[-1]
    up, down = (sum(getattr(each, way) for each in placed) for way in ("up_bytes", "down_bytes"))
    seconds = sum(each.tail_seconds for each in placed)
    return [
        Tile(
            "layers on the host",
            str(last.layers),
            f"from {last.layer or 'its own tensors'} on, {format_bytes(last.state_bytes)}",
            f"{format_seconds(seconds)} of computing ({last.clock}) in {len(placed):,} steps",
        ),
        Tile(
            "across the cut",
            format_bytes(up + down),
            "counted on the wire",
            f"{format_bytes(up)} of activations and labels, {format_bytes(down)} of gradients back",
        ),
    ]
