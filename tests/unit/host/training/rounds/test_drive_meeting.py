"""Drives of a round meet: one answer to what all of those gave that are still at work, in whatever order they come."""

import asyncio
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_agent.common.slices import Array
from host.training.rounds.drive_meeting import Brought, DriveMeeting
from tests.support.examples import examples


def total(_: int, brought: Brought) -> Brought:
    answer = {"sum": np.asarray(sum(int(arrays["x"]) for arrays in brought.values()))}
    return dict.fromkeys(brought, answer)


@settings(max_examples=examples(40))
@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.randoms())
def test_each_exchange_has_what_was_given_by_all_that_are_at_work(counts: list[int], random: object) -> None:
    """Drive i exchanges counts[i] times, and then has done the round."""
    delays = [[random.random() for _ in range(count + 1)] for count in counts]  # type: ignore[attr-defined]

    async def work(meeting: DriveMeeting, place: int) -> list[int]:
        got = []
        try:
            for turn in range(counts[place]):
                for _ in range(int(5 * delays[place][turn])):
                    await asyncio.sleep(0)
                answer: Mapping[str, Array] = await meeting.meet(str(place), {"x": np.asarray(10**place)})
                got.append(int(answer["sum"]))
        finally:
            meeting.leave(str(place))
        return got

    async def all_of_them() -> list[list[int]]:
        meeting = DriveMeeting([str(place) for place in range(len(counts))], total)
        return await asyncio.wait_for(asyncio.gather(*(work(meeting, place) for place in range(len(counts)))), 30)

    for place, got in enumerate(asyncio.run(all_of_them())):
        assert got == [
            sum(10**other for other, count in enumerate(counts) if count > turn) for turn in range(counts[place])
        ]


def test_what_the_strategy_raises_is_raised_in_all_that_wait() -> None:
    def fails(_: int, brought: Brought) -> Brought:
        raise ValueError("no answer")

    async def both() -> list[object]:
        meeting = DriveMeeting(["a", "b"], fails)
        waits = (meeting.meet(name, {}) for name in ("a", "b"))
        return await asyncio.gather(*waits, return_exceptions=True)

    assert [repr(each) for each in asyncio.run(both())] == ["ValueError('no answer')"] * 2


@pytest.mark.parametrize("lost", ["a", "b"])
def test_who_is_lost_while_others_wait_is_waited_for_no_more(lost: str) -> None:
    async def meet() -> Mapping[str, Array]:
        meeting = DriveMeeting(["a", "b", "c"], total)
        waits = {name: asyncio.create_task(meeting.meet(name, {"x": np.asarray(1)})) for name in ("a", "c")}
        await asyncio.sleep(0)
        meeting.leave(lost)
        meeting.leave("b")
        return await asyncio.wait_for(waits["c"], 30)

    assert int(asyncio.run(meet())["sum"]) == (1 if lost == "a" else 2)
