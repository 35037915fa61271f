"""A counted run of a job beside a second one: how far the clock ``counted`` repeats, before another is held against it.

A tuner or planner that decides from measured seconds may decide otherwise in a second counted run, for instance because
time slices beside a competing task fall otherwise. What does not repeat on the same clock says nothing of another one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from csd_lab.clocks.clock_comparison import ARRAY, ClockComparison, device_seconds
from csd_lab.clocks.clock_runs import ClockRun
from csd_lab.clocks.decisions import Decision, decisions_of_both, equal_decisions, read_decisions
from firmware_agent.common.errors import EnvironmentUnfit


class RepeatedSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a whole run, counted twice.

    Attributes:
        of: a drive, of which they are compute seconds; or ``array``, of which they are composed ones.
        first_seconds: of the run against which the sampled one is held.
        second_seconds: of the other.
    """

    of: str
    first_seconds: float
    second_seconds: float

    @property
    def error(self) -> float:
        """First over second seconds, less 1."""
        return self.first_seconds / self.second_seconds - 1 if self.second_seconds else math.inf


class CountedRepeat(msgspec.Struct, frozen=True, kw_only=True):
    """Two counted runs of a job, and what the sampled run has of what they have alike.

    Attributes:
        seconds: of each drive and of the array, in the rounds that counted and sampled run have.
        second_decisions: what was decided in the second run.
        equal_decisions: how many decisions both counted runs have.
        decisions: how many there are in either.
        sampled_equal_decisions: how many of the equal ones the sampled run has too.
    """

    seconds: list[RepeatedSeconds]
    second_decisions: list[Decision]
    equal_decisions: int
    decisions: int
    sampled_equal_decisions: int

    @property
    def repeats(self) -> bool:
        """Whether both runs have all decisions alike."""
        return self.equal_decisions == self.decisions

    @property
    def seconds_worst(self) -> float:
        """Largest absolute difference of a drive's or the array's seconds, as a share."""
        return max(abs(each.error) for each in self.seconds)


def compare_repeat(comparison: ClockComparison, first: ClockRun, second: ClockRun) -> CountedRepeat:
    """Compare two counted runs of a job, in the rounds that were compared with the sampled one.

    Args:
        comparison: of the first one and the sampled run.
        first: counted run.
        second: counted run of the same job on the same array.

    Raises:
        EnvironmentUnfit: the second one has fewer rounds than were compared.
    """
    rounds, others = (run.read_rounds()[: comparison.rounds] for run in (first, second))
    if len(others) < comparison.rounds:
        raise EnvironmentUnfit(
            f"{comparison.job}: {second.directory} has {len(others)} rounds, {comparison.rounds} are compared; remove "
            "it to have it run again"
        )
    ours, theirs = device_seconds(rounds), device_seconds(others)
    pairs = {device: (ours.get(device, 0.0), theirs.get(device, 0.0)) for device in ours | theirs}
    pairs[ARRAY] = sum(r.array_seconds for r in rounds), sum(r.array_seconds for r in others)
    decisions = read_decisions(others, second.directory)
    equal, every = equal_decisions(comparison.counted_decisions, decisions)
    alike = decisions_of_both(comparison.counted_decisions, decisions)
    return CountedRepeat(
        seconds=[
            RepeatedSeconds(of=name, first_seconds=one, second_seconds=two)
            for name, (one, two) in pairs.items()
            if one or two  # a drive that the planner set aside has none
        ],
        second_decisions=decisions,
        equal_decisions=equal,
        decisions=every,
        sampled_equal_decisions=len(decisions_of_both(alike, comparison.sampled_decisions)),
    )


class _Share(NamedTuple):
    """So many of so many."""

    part: int
    whole: int


def decision_figures(compared: Sequence[ClockComparison], repeats: Mapping[str, CountedRepeat]) -> dict[str, float]:
    """Return `decisions_equal`, `decisions_equal_all` and `decisions_repeat`, where there is any decision.

    `decisions_equal_all` is the share of all decisions of counted and sampled run that both have. `decisions_equal` is
    the same of jobs whose decisions repeat; of one whose counted runs decided otherwise, the share of what these two
    have alike that the sampled run has too. `decisions_repeat` is the share that the two counted runs have alike.

    Args:
        compared: the jobs.
        repeats: job -> its two counted runs, of those that decide from measured seconds.
    """
    every, judged = [], []
    for each in compared:
        every.append(_Share(each.equal_decisions, each.decisions))
        repeat = repeats.get(each.job)
        if repeat is None or repeat.repeats:
            judged.append(every[-1])
        else:
            judged.append(_Share(repeat.sampled_equal_decisions, repeat.equal_decisions))
    shares = {
        "decisions_equal": judged,
        "decisions_equal_all": every,
        "decisions_repeat": [_Share(each.equal_decisions, each.decisions) for each in repeats.values()],
    }
    wholes = {name: sum(each.whole for each in of) for name, of in shares.items()}
    return {name: sum(each.part for each in of) / wholes[name] for name, of in shares.items() if wholes[name]}
