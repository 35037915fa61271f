"""How much of a machine's processor time went to others, and which runs are made again for it."""

import asyncio
from functools import partial
from itertools import chain, repeat

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from csd_lab.bench.harness import MOST_STOLEN, Attempt, StolenTime, read_ticks, undisturbed

SECONDS = st.floats(0, 1e6)
JOBS, PASSES = 8, 2.5


@given(before=st.tuples(SECONDS, SECONDS), busy=SECONDS, stolen=SECONDS)
def test_the_share_is_of_what_was_wanted_since_then(before: tuple[float, float], busy: float, stolen: float) -> None:
    reads = iter([before, (before[0] + busy, before[1] + stolen)])
    share = StolenTime(lambda: next(reads)).share
    assert 0 <= share <= 1
    assert share * (busy + stolen) == pytest.approx(stolen, abs=1e-3)


def test_this_machines_time_grows_with_work() -> None:
    before = read_ticks()
    while (now := read_ticks())[0] <= before[0]:
        pass
    assert now[1] >= before[1]


class Stolen(StolenTime):
    """Says what it is told to."""

    def __init__(self, share: float) -> None:
        self._share = share

    @property
    def share(self) -> float:
        return self._share


def play(shares: list[float]) -> tuple[list[Attempt[int]], list[int]]:
    """Run jobs from which so much is stolen, in their order; 0 when the list has ended. Return also which were run."""
    made: list[int] = []
    stolen = chain(map(Stolen, shares), repeat(Stolen(0.0)))

    async def make(number: int) -> int:
        made.append(number)
        return len(made) - 1

    jobs = [partial(make, number) for number in range(JOBS)]
    return asyncio.run(undisturbed(jobs, passes=PASSES, watch=lambda: next(stolen))), made


@given(st.lists(st.one_of(st.floats(0, 1), st.sampled_from([0.0, MOST_STOLEN])), max_size=2 * JOBS))
@example([0.3] * JOBS + [0.5] * 2 * JOBS)
@example([0.5] * JOBS + [0.3] * 2 * JOBS)
def test_disturbed_runs_are_made_again_after_all_others_and_the_least_disturbed_counts(shares: list[float]) -> None:
    seen, made = play(shares)
    assert made[:JOBS] == list(range(JOBS))
    assert len(made) <= PASSES * JOBS
    got: dict[int, list[float]] = {}
    for number, job in enumerate(made):
        got.setdefault(job, []).append(shares[number] if number < len(shares) else 0.0)
    for number, each in enumerate(seen):
        assert made[each.result] == number
        assert each.stolen_share == min(got[number])
        assert each.runs == len(got[number])
        assert all(share > MOST_STOLEN for share in got[number][:-1])  # one that was not disturbed is not made again
    if len(made) < PASSES * JOBS:
        assert all(each.stolen_share <= MOST_STOLEN for each in seen)
    longest = max(len(each) for each in got.values())
    assert all(len(each) >= longest - 1 or min(each) <= MOST_STOLEN for each in got.values())
