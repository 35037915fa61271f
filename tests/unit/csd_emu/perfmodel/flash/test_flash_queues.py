"""Queues against one operation after another, and windows against one window."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.flash.flash_queues import Columns, Stations, spread

rows = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9), st.integers(0, 2), st.booleans()), max_size=30)


def table(operations: list[tuple[int, int, int, bool]]) -> Columns:
    ready, service, die, engine = (list(column) for column in zip(*operations, strict=True)) if operations else [[]] * 4
    return {
        **{"ready": np.array(ready, np.int64), "service": np.array(service, np.int64)},
        **{"die": np.array(die, np.int64), "engine": np.array(engine, np.bool_)},
    }


def serve_slowly(operations: list[tuple[int, int, int, bool]], host_first: bool) -> list[int]:
    """Let each server take one operation after another, as the policy says."""
    ends = [0] * len(operations)
    for server in range(3):
        left = [place for place, operation in enumerate(operations) if operation[2] == server]
        now = 0
        while left:
            now = max(now, min(operations[place][0] for place in left))
            came = [place for place in left if operations[place][0] <= now]
            chosen = min(came, key=lambda place: (operations[place][3] and host_first, operations[place][0], place))
            now = ends[chosen] = now + operations[chosen][1]
            left.remove(chosen)
    return ends


@given(operations=rows, host_first=st.booleans(), cuts=st.lists(st.integers(0, 100), max_size=4))
def test_all_are_served_once_as_the_policy_says_whatever_the_windows(
    operations: list[tuple[int, int, int, bool]], host_first: bool, cuts: list[int]
) -> None:
    stations, columns, begun = Stations(3, host_first), table(operations), list[int]()
    waiting = np.arange(len(operations))
    for cut in [*sorted(cuts), 10**9]:
        known = waiting[columns["ready"][waiting] < cut]
        began = stations.serve(columns, known, cut)
        begun += began.tolist()
        waiting = np.setdiff1d(waiting, began)
    assert sorted(begun) == list(range(len(operations)))
    assert columns["ready"].tolist() == serve_slowly(operations, host_first)


@given(operations=rows)
def test_with_the_host_first_its_operations_wait_for_one_of_the_engines_at_most(
    operations: list[tuple[int, int, int, bool]],
) -> None:
    columns = table(operations)
    Stations(3, True).serve(columns, np.arange(len(operations)), 10**9)
    ends = columns["ready"].tolist()
    for place, (ready, service, die, engine) in enumerate(operations):
        between = [
            other
            for other, (_, time, server, engines) in enumerate(operations)
            if engines and server == die and time and ends[other] > ready and ends[other] <= ends[place] - service
        ]
        assert engine or len(between) <= 1


@given(counts=st.lists(st.integers(0, 5), max_size=10))
def test_parts_know_their_whole_and_place(counts: list[int]) -> None:
    which, place = spread(np.array(counts, np.int64))
    assert list(zip(which.tolist(), place.tolist(), strict=True)) == [
        (whole, part) for whole, count in enumerate(counts) for part in range(count)
    ]
