"""How much of a machine's processor time went to others, and which runs are made again for it."""

import asyncio

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from host.bench.comm_cases import Case
from host.bench.comm_runs import Blocks
from host.bench.comm_wall import MOST_STOLEN, Seen, plan, undisturbed
from host.bench.stolen import StolenTime, Ticks, read_ticks

SECONDS = st.floats(0, 1e6)
PLAN = plan()


@given(before=st.tuples(SECONDS, SECONDS), busy=SECONDS, stolen=SECONDS)
def test_the_share_is_of_what_was_wanted_since_then(before: tuple[float, float], busy: float, stolen: float) -> None:
    reads = iter([Ticks(*before), Ticks(before[0] + busy, before[1] + stolen)])
    share = StolenTime(lambda: next(reads)).share
    assert 0 <= share <= 1
    assert share * (busy + stolen) == pytest.approx(stolen, abs=1e-3)


def test_this_machines_time_grows_with_work() -> None:
    before = read_ticks()
    while (now := read_ticks()).busy <= before.busy:
        pass
    assert now.stolen >= before.stolen


def play(shares: list[float]) -> tuple[list[Seen], list[int]]:
    """Make runs of which so much is stolen, in their order; 0 when the list has ended. Return also which were made."""
    made: list[int] = []

    async def make(case: Case, turns: Blocks) -> Seen:
        made.append(PLAN.index((case, turns)))
        number = len(made) - 1
        return Seen(case, {}, shares[number] if number < len(shares) else 0.0)

    return asyncio.run(undisturbed(PLAN, make)), made


@given(st.lists(st.one_of(st.floats(0, 1), st.sampled_from([0.0, MOST_STOLEN])), max_size=80))
@example([0.3] * len(PLAN) + [0.5] * 80)
@example([0.5] * len(PLAN) + [0.3] * 80)
def test_disturbed_runs_are_made_again_after_all_others_and_the_least_disturbed_counts(shares: list[float]) -> None:
    seen, made = play(shares)
    assert [each.case for each in seen] == [case for case, _ in PLAN]
    assert made[: len(PLAN)] == list(range(len(PLAN)))
    assert len(made) <= 2.5 * len(PLAN)
    got: dict[int, list[float]] = {}
    for number, run in enumerate(made):
        got.setdefault(run, []).append(shares[number] if number < len(shares) else 0.0)
    for number, each in enumerate(seen):
        assert each.stolen_share == min(got[number])
        assert each.runs == len(got[number])
        assert all(share > MOST_STOLEN for share in got[number][:-1])  # one that was not disturbed is not made again
    if len(made) < 2.5 * len(PLAN):
        assert all(each.stolen_share <= MOST_STOLEN for each in seen)
    longest = max(len(each) for each in got.values())
    assert all(len(each) >= longest - 1 or min(each) <= MOST_STOLEN for each in got.values())
