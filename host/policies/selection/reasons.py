"""Reasons of a choice, in plain sentences; and the front of all. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from host.core.figure_bands import Band, format_ratio, span_of
from host.policies.selection.cluster import Configuration, Counts, Floats, TrialResult
from host.policies.selection.search.ranking import TIE, Ranking


def pareto_front(first: Floats, other: Floats) -> Counts:
    """Return the numbers of the points that no other dominates, the least `first` first; of equal ones the earliest.

    A point dominates another one if it is less in one value and no more in the other. With seconds T and watts P the
    front holds for energy too: E = P T (Gu et al.) is no more where neither is.

    Args:
        first: (points,) float64; less is better.
        other: (points,) float64; less is better.
    """
    order = np.lexsort((np.arange(len(first)), other, first))
    least = np.minimum.accumulate(other[order])
    keeps = np.concatenate([[True], other[order][1:] < least[:-1]])[: len(order)]
    return np.asarray(order[keeps], np.int64)


def pareto_rows(ranking: Ranking) -> Counts:
    """Return the rows of the feasible configurations that no other dominates in watts, time and energy of a record."""
    rows = ranking.order
    return np.asarray(rows[pareto_front(ranking.record_seconds[rows], ranking.watts[rows])])


def explain(
    ranking: Ranking,
    ends: Sequence[Ranking],
    steps: int,
    sure: float,
    trials: Sequence[TrialResult],
    lost: Sequence[str],
) -> tuple[str, ...]:
    """Return why the best one wins: against all devices, one less, the host alone, the runner-up; and how sure it is.

    Args:
        ranking: of all.
        ends: the same at both ends of the profiles' bands; empty without any.
        steps: how many of the best one were measured.
        sure: see `Ranking.sure`.
        trials: that were taken.
        lost: devices that failed.
    """
    best = ranking.best
    name = ranking.cluster.name(ranking.points.counts[best].tolist())
    known = f"{steps} steps of it were measured" if steps else "it was not run: the estimate is the model's"
    sentences = [
        f"{name} is the best for {ranking.rules.preference.label}: {ranking.seconds[best]:.4g} s, "
        f"{ranking.watts[best]:.4g} W, {ranking.seconds[best] * ranking.watts[best]:.4g} J; {known}."
    ]
    told = {best}
    for what, row in _others(ranking):
        if row is not None and row not in told:
            told.add(row)
            sentences.append(_compare(ranking, ends, what, row))
    run, steps_run = len({each.trial.configuration for each in trials}), sum(len(each.seen) for each in trials)
    sentences.append(
        f"{run} of {len(ranking.points)} configurations were run, {steps_run} steps in all; "
        f"with a probability of {sure:.0%} no other one is better by more than {TIE:.0%}."
    )
    chance = float(ranking.chances(np.array([best]))[0])
    more = {
        f"It keeps to the constraints with a probability of {chance:.0%}.": chance < 1,
        f"{', '.join(lost)} failed and {'takes' if len(lost) == 1 else 'take'} part in nothing.": lost,
        **{
            f"{node} failed and was to be included: this plan is without it; mend it and plan again to include it.": (
                node in ranking.rules.constraints.include
            )
            for node in lost
        },
    }
    return (*sentences, *(sentence for sentence, holds in more.items() if holds))


def _others(ranking: Ranking) -> Iterator[tuple[str, int | None]]:
    counts = ranking.points.counts[ranking.best]
    most = ranking.points.counts.max(axis=0)
    yield "all devices", ranking.find(tuple(most.tolist()))
    less: list[Configuration] = []
    for kind in np.flatnonzero(counts):
        fewer = counts.copy()
        fewer[kind] -= 1
        less.append(tuple(fewer.tolist()))
    rows = [row for row in map(ranking.find, less) if row is not None]
    yield "one device less", min(rows, key=lambda row: float(ranking.score[row]), default=None)
    local = np.array([kind.local for kind in ranking.cluster.kinds])
    if local.any():
        yield "the host alone", ranking.find(tuple((most * local).tolist()))
    yield "the runner-up", int(ranking.order[1]) if len(ranking.order) > 1 else None


def _compare(ranking: Ranking, ends: Sequence[Ranking], what: str, row: int) -> str:
    best, seconds = ranking.best, ranking.record_seconds
    time = seconds[row] / seconds[best] - 1
    watts = ranking.watts[row] / ranking.watts[best] - 1
    energy = (1 + time) * (1 + watts) - 1
    name = ranking.cluster.name(ranking.points.counts[row].tolist())
    of = "" if ranking.work[row] == ranking.work[best] else " of a record"
    there = "there" if ranking.feasible[row] else "there; it does not keep to the constraints"
    figures = {
        f"{_change(time)} time{of}": [each.record_seconds for each in ends],
        f"{_change(watts)} power": [each.watts for each in ends],
        f"{_change(energy)} energy{of}": [each.record_seconds * each.watts for each in ends],
    }
    changes = (format_ratio(text, _band(each, row), _band(each, best)) for text, each in figures.items())
    return f"Against {what} ({name}): {', '.join(changes)} {there}."


def _band(ends: Sequence[Floats], row: int) -> Band | None:
    return span_of(float(each[row]) for each in ends) if ends else None


def _change(share: float) -> str:
    return f"{abs(share):.1%} {'more' if share >= 0 else 'less'}"
