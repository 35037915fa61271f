"""Marks of all charts of steps: where batches were changed, and where other work competed; with tooltips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from matplotlib.axes import Axes

from host.core.records import RetuneRecord, StepRecord
from host.monitoring.report.charts.svg import INK, MUTED
from host.monitoring.retune_text import describe_batches

# More marks than this hide what they mark; the last ones stay.
_MOST_MARKS = 60
_SHADE = 0.16


@dataclass(frozen=True)
class Spell:
    """Steps in a row with the same competing work."""

    first: int
    last: int
    disturbed: Mapping[str, int]

    @property
    def told(self) -> str:
        """For people."""
        work = ", ".join(f"{name} (weight {weight})" for name, weight in self.disturbed.items())
        return f"competing work in steps {self.first} to {self.last}: {work}"


@dataclass(frozen=True)
class StepMarks:
    """What all charts of steps show beside their own lines."""

    retunes: Sequence[RetuneRecord]
    spells: Sequence[Spell]

    @property
    def tooltips(self) -> dict[str, str]:
        """Text per mark."""
        changes = {
            f"retune-{number}": f"step {retune.step}: {describe_batches(retune)}. {retune.reason}"
            for number, retune in enumerate(self.retunes)
        }
        return changes | {f"spell-{number}": spell.told for number, spell in enumerate(self.spells)}

    def paint(self, axes: Axes) -> None:
        """Shade the disturbances and mark the retunes; their texts come as tooltips."""
        for number, spell in enumerate(self.spells):
            label = "competing work" if number == 0 else None
            edges = spell.first - 0.5, spell.last + 0.5
            axes.axvspan(*edges, color=MUTED, alpha=_SHADE, linewidth=0, gid=f"spell-{number}", label=label)
        for number, retune in enumerate(self.retunes):
            at = retune.step - 0.5
            axes.axvline(at, color=MUTED, linewidth=0.9, linestyle=":")
            axes.plot(
                [at],
                [1.0],
                marker="v",
                markersize=7,
                color=INK,
                linestyle="",
                transform=axes.get_xaxis_transform(),
                clip_on=False,
                gid=f"retune-{number}",
                label="retune" if number == 0 else None,
            )


def make_marks(steps: Sequence[StepRecord], retunes: Sequence[RetuneRecord]) -> StepMarks:
    """Return the last retunes and the last times of competing work."""
    grouped = [(disturbed, list(run)) for disturbed, run in groupby(steps, key=lambda step: step.disturbed)]
    spells = [Spell(run[0].step, run[-1].step, disturbed) for disturbed, run in grouped if disturbed]
    return StepMarks(retunes[-_MOST_MARKS:], spells[-_MOST_MARKS:])
