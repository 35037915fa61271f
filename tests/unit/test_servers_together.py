"""Gradients of several servers come to the mean over all their records, whatever their shapes and dtypes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.servers import ServerLink
from firmware_agent.exchange import Array
from host.servers.in_memory import Meeting
from host.servers.link import Outcome
from host.servers.together import ServersTogether
from host.servers.turns import Position, Stage
from host.sync.together import DevicePart, Reduced, ServerPart

LINK = ServerLink()
SHAPES = st.lists(
    st.tuples(st.sampled_from(["<f4", "<f8", "<i8"]), st.lists(st.integers(0, 3), max_size=3)), min_size=1, max_size=4
)


def part_of(server: str, records: int) -> ServerPart:
    parts = [DevicePart(f"{server}-00", records, 0.25)] if records else []
    return ServerPart(records, records, 0.5, 1.0, parts, parts, {f"{server}-00": 2.0}, {f"{server}-00": 1.0}, [])


def reduce_all(each: dict[str, tuple[dict[str, Array], int]]) -> dict[str, Reduced]:
    """What servers with these means over so many records each make of them."""
    meeting = Meeting(list(each))
    servers = {name: ServersTogether(name, meeting.enter(name), LINK) for name in each}

    async def go() -> list[Reduced]:
        return await asyncio.gather(
            *(servers[name].reduce(1, means, part_of(name, records)) for name, (means, records) in each.items())
        )

    return dict(zip(each, asyncio.run(go()), strict=True))


@settings(max_examples=40)
@given(shapes=SHAPES, records=st.lists(st.integers(0, 50), min_size=1, max_size=4), seed=st.integers(0, 2**32))
def test_means_are_weighted_by_records(shapes: list[tuple[str, list[int]]], records: list[int], seed: int) -> None:
    generator = np.random.default_rng(seed)

    def tensors(count: int) -> dict[str, Array]:
        each = {f"t{n}": 10 * generator.standard_normal(shape) for n, (_, shape) in enumerate(shapes)}
        return {
            name: (np.rint(array) if dtype == "<i8" else array).astype(dtype) if count else np.zeros(shape, dtype)
            for (name, array), (dtype, shape) in zip(each.items(), shapes, strict=True)
        }

    each = {f"s{n}": (tensors(count), count) for n, count in enumerate(records)}
    reduced = reduce_all(each)
    for name, one in reduced.items():
        assert list(one.parts) == list(each)
        assert {server: part.records for server, part in one.parts.items()} == dict(zip(each, records, strict=True))
        if not sum(records):
            assert one.means == {}
            continue
        for tensor, (dtype, shape) in zip(each[name][0], shapes, strict=True):
            wanted = np.average([means[tensor].astype(float) for means, _ in each.values()], axis=0, weights=records)
            mean = one.means[tensor]
            assert (mean.dtype, mean.shape) == (np.dtype(dtype), tuple(shape))
            if dtype == "<i8":
                assert np.abs(mean - wanted).max(initial=0.0) <= 0.5 + 1e-9
            else:
                np.testing.assert_allclose(mean, wanted, rtol=1e-5 if dtype == "<f4" else 1e-12, atol=2e-5)
            np.testing.assert_array_equal(mean, reduced["s0"].means[tensor])  # to the bit, everywhere


@pytest.mark.parametrize(("values", "records", "mean"), [((3, 4), (1, 1), 4), ((3, 4), (2, 1), 3), ((7, 7), (5, 9), 7)])
def test_whole_numbers_are_rounded(values: tuple[int, int], records: tuple[int, int], mean: int) -> None:
    each = {name: ({"n": np.array(value)}, count) for name, value, count in zip("ab", values, records, strict=True)}
    assert all(int(one.means["n"]) == mean for one in reduce_all(each).values())


def test_numbers_that_float32_cannot_hold_stay_whole() -> None:
    each = {name: ({"n": np.array(2**40 + 1)}, 3) for name in "abc"}
    assert all(int(one.means["n"]) == 2**40 + 1 for one in reduce_all(each).values())


def test_adding_up_costs_what_a_ring_does_and_nothing_for_one_server() -> None:
    means = {"w": np.ones(1000, np.float32), "n": np.ones((), np.int64)}
    alone = reduce_all({"a": (means, 1)})["a"]
    assert (alone.link_seconds, alone.sent_bytes) == (0.0, 0)
    four = reduce_all({name: (means, 1) for name in "abcd"})["a"]
    size_bytes = 4008
    assert four.sent_bytes == 2 * 3 * size_bytes // 4
    assert four.link_seconds == pytest.approx(6 * (LINK.latency + size_bytes / 4 / LINK.bandwidth))


class Noted:
    """Turns that only this server takes, and where they were taken."""

    def __init__(self) -> None:
        self.taken: list[tuple[Position, int, int]] = []
        self.again = 0

    async def turn(
        self, position: Position, meta: bytes, sums: tuple[Array, Array], give_state: Callable[[], bytes]
    ) -> Outcome:
        self.taken.append((position, *map(len, sums)))
        return Outcome({"a": meta}, *sums, self.again)


async def test_where_turns_are_taken_and_how_often_servers_met() -> None:
    turns = Noted()
    together = ServersTogether("a", turns, LINK)
    turns.again = 2
    assert await together.begin(5, ["a-01", "a-00"], lambda: b"") == []
    turns.again = 1
    reduced = await together.reduce(5, {"w": np.ones(3, np.float32), "n": np.ones(2, np.int64)}, part_of("a", 1))
    assert reduced.meetings == 3
    assert await together.end_round(5, 0.5, 0.25) == (0.5, 0.25)
    await together.end(lambda: b"")
    assert turns.taken == [
        (Position(5, Stage.BEGIN), 0, 0),
        (Position(5, Stage.REDUCE), 3, 2),
        (Position(5, Stage.ROUND), 0, 0),
        (Position(6, Stage.BEGIN), 0, 0),
    ]


async def test_the_first_servers_judgement_is_everyones() -> None:
    meeting = Meeting(["b", "a"])
    servers = [ServersTogether(name, meeting.enter(name), LINK) for name in ("a", "b")]
    judged = await asyncio.gather(*(each.end_round(3, float(n), 10.0 + n) for n, each in enumerate(servers)))
    assert judged == [(1.0, 11.0)] * 2


async def test_others_devices_are_told_before_a_step() -> None:
    meeting = Meeting(["a", "b", "c"])
    here = {"a": ["a-00"], "b": [], "c": ["c-01", "c-00"]}
    servers = {name: ServersTogether(name, meeting.enter(name), LINK) for name in here}
    told = await asyncio.gather(*(servers[name].begin(1, here[name], lambda: b"") for name in here))
    assert told == [["c-00", "c-01"], ["a-00", "c-00", "c-01"], ["a-00"]]
