"""What the page says of a synchronous run: phases, retunes, steps that were out of the ordinary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from host.records import RetuneRecord, RoundRecord, StepRecord
from host.report.formats import format_number
from host.report.steps import Phase, list_phases, list_retunes, list_steps, mean_imbalance, share_of_possible
from host.report.tiles import Tile
from host.retunes import describe_batches

_MOST_ROWS = 60
_MOST_NAMES = 8


@dataclass(frozen=True)
class SyncSection:
    """A synchronous run in figures; of long tables the last rows.

    Attributes:
        steps: in all.
        phases: before, during and after disturbances, or between retunes.
        hidden_phases: how many earlier ones are left out, as are the next two.
        retunes: with what changed, for people.
        hidden_retunes: see above.
        unusual: steps with devices that were late or lost, or with slices of such.
        hidden_unusual: see above.
        late_devices: device -> steps in which it was late.
    """

    steps: int
    phases: list[Phase]
    hidden_phases: int
    retunes: list[tuple[RetuneRecord, str]]
    hidden_retunes: int
    unusual: list[StepRecord]
    hidden_unusual: int
    late_devices: dict[str, int]


def describe_steps(rounds: Sequence[RoundRecord]) -> SyncSection | None:
    """Return what there is to say of the steps; None of a run without any."""
    steps, retunes = list_steps(rounds), list_retunes(rounds)
    if not steps:
        return None
    phases = list_phases(rounds)
    unusual = [step for step in steps if step.late or step.lost or step.mixed]
    late: dict[str, int] = {}
    for name in (name for step in steps for name in step.late):
        late[name] = late.get(name, 0) + 1
    return SyncSection(
        steps=len(steps),
        phases=phases[-_MOST_ROWS:],
        hidden_phases=max(0, len(phases) - _MOST_ROWS),
        retunes=[(retune, describe_batches(retune, _MOST_NAMES)) for retune in retunes[-_MOST_ROWS:]],
        hidden_retunes=max(0, len(retunes) - _MOST_ROWS),
        unusual=unusual[-_MOST_ROWS:],
        hidden_unusual=max(0, len(unusual) - _MOST_ROWS),
        late_devices=late,
    )


def step_tiles(rounds: Sequence[RoundRecord], clock: str) -> list[Tile]:
    """Return the headline figures of the steps; none of a run without any."""
    steps, retunes = list_steps(rounds), list_retunes(rounds)
    if not steps:
        return []
    share = share_of_possible(steps)
    worst = max(step.imbalance for step in steps)
    disturbed = sum(bool(step.disturbed) for step in steps)
    return [
        *([_possible_tile(share, clock)] if share is not None else []),
        Tile(
            "imbalance of steps",
            f"{mean_imbalance(steps):.1%}",
            f"of the slowest device's compute ({clock})",
            f"mean of {len(steps):,} steps; at worst {worst:.1%}",
        ),
        Tile(
            "retunes",
            str(len(retunes)),
            "times batch sizes changed",
            f"{format_number(disturbed)} steps with competing work",
        ),
    ]


def _possible_tile(share: float, clock: str) -> Tile:
    basis = "by tables, scaled by speeds observed"
    return Tile("of what was possible", f"{share:.1%}", f"images, by compute ({clock})", basis)
