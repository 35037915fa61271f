"""Queues against one operation after another, and windows against one window."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.flash.flash_queues import Columns, Stations, first_come, spread

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


DAY_NS = 86_400 * 10**9


@given(
    operations=st.lists(st.tuples(st.sampled_from([0, 1, 2**15 - 1]), st.integers(0, 9), st.integers(0, 9))),
    scale=st.sampled_from([1, DAY_NS // 4, DAY_NS]),
    begin=st.sampled_from([0, 2**50, 2**60]),
)
def test_of_the_most_dies_none_delays_another_however_long_the_window(
    operations: list[tuple[int, int, int]], scale: int, begin: int
) -> None:
    columns = np.array(sorted(operations), np.int64).reshape(-1, 3).T
    server, ready, service = columns[0], begin + columns[1] * scale, columns[2]
    free, ends = dict[int, int](), list[int]()
    for die, when, how_long in zip(server.tolist(), ready.tolist(), service.tolist(), strict=True):
        free[die] = max(free.get(die, 0), when) + how_long
        ends.append(free[die])
    assert first_come(ready, service, server).tolist() == ends


def test_a_command_days_later_begins_when_it_is_ready() -> None:
    ready = [0, 4 * DAY_NS]
    columns = table([(ready[0], 5, 0, False), (ready[1], 5, 2**15 - 1, False)])
    assert sorted(Stations(2**15, False).serve(columns, np.arange(2), 2**62).tolist()) == [0, 1]
    assert columns["ready"].tolist() == [when + 5 for when in ready]


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
