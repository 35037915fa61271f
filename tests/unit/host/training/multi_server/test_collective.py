"""Gradients of several servers come to the mean over all their records, whatever their shapes and dtypes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.config.servers_file import ServerLink
from firmware_agent.common.slices import Array
from host.core.learning.judgement import Judgement
from host.core.states.peer_servers import DevicePart, ReducedStep, ServerPart, StateBehind
from host.core.states.training_state import TrainingState
from host.training.multi_server import server_membership as run
from host.training.multi_server.server_membership import ServersTogether
from host.training.multi_server.state_sync import Position, Stage
from host.training.multi_server.worker.worker_link import TurnOutcome
from tests.support.examples import examples
from tests.support.in_memory_peers import InMemoryRendezvous

LINK = ServerLink()
SHAPES = st.lists(
    st.tuples(st.sampled_from(["<f4", "<f8", "<i8"]), st.lists(st.integers(0, 3), max_size=3)), min_size=1, max_size=4
)


def part_of(server: str, records: int) -> ServerPart:
    parts = [DevicePart(f"{server}-00", records, 0.25)] if records else []
    return ServerPart(records, records, 0.5, 1.0, parts, parts, {f"{server}-00": 2.0}, {f"{server}-00": 1.0}, [])


def reduce_all(each: dict[str, tuple[dict[str, Array], int]]) -> dict[str, ReducedStep]:
    """What servers with these means over so many records each make of them."""
    meeting = InMemoryRendezvous(list(each))
    servers = {name: ServersTogether(name, meeting.enter(name), LINK) for name in each}

    async def go() -> list[ReducedStep]:
        return await asyncio.gather(
            *(servers[name].reduce(1, means, part_of(name, records)) for name, (means, records) in each.items())
        )

    return dict(zip(each, asyncio.run(go()), strict=True))


@settings(max_examples=examples(40))
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
    four = reduce_all({name: (means, 1) for name in "abcd"})["a"]  # type: ignore[misc]
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
    ) -> TurnOutcome:
        self.taken.append((position, *map(len, sums)))
        return TurnOutcome({"a": meta}, *sums, self.again)


async def test_where_turns_are_taken_and_how_often_servers_met() -> None:
    turns = Noted()
    together = ServersTogether("a", turns, LINK)
    turns.again = 2
    assert await together.begin(5, ["a-01", "a-00"], b"x", lambda: b"") == []
    turns.again = 1
    reduced = await together.reduce(5, {"w": np.ones(3, np.float32), "n": np.ones(2, np.int64)}, part_of("a", 1))
    assert reduced.meetings == 3
    assert await together.end_round(5, Judgement(0.5, 0.25)) == Judgement(0.5, 0.25)
    await together.begin(6, [], b"", lambda: b"")
    assert turns.taken == [
        (Position(5, 0, Stage.BEGIN), 0, 0),
        (Position(5, 1, Stage.REDUCE), 3, 2),
        (Position(6, 2, Stage.ROUND), 0, 0),
        (Position(6, 3, Stage.BEGIN), 0, 0),
    ]
    assert [place for place, *_ in turns.taken] == sorted({place for place, *_ in turns.taken})
    assert together.turn == 4


async def test_the_first_servers_judgement_is_everyones() -> None:
    meeting = InMemoryRendezvous(["b", "a"])
    servers = [ServersTogether(name, meeting.enter(name), LINK) for name in ("a", "b")]
    judged = await asyncio.gather(*(each.end_round(3, Judgement(float(n), 10.0 + n)) for n, each in enumerate(servers)))
    assert judged == [Judgement(1.0, 11.0)] * 2


async def test_others_devices_are_told_before_a_step() -> None:
    meeting = InMemoryRendezvous(["a", "b", "c"])
    here = {"a": ["a-00"], "b": [], "c": ["c-01", "c-00"]}
    servers = {name: ServersTogether(name, meeting.enter(name), LINK) for name in here}
    told = await asyncio.gather(*(servers[name].begin(1, here[name], b"", lambda: b"") for name in here))
    assert told == [["c-00", "c-01"], ["a-00", "c-00", "c-01"], ["a-00"]]


@pytest.mark.parametrize(
    ("weights", "different"),
    [("xyx", "b"), ("xxy", "c"), ("yxx", "a"), ("xy", "b"), ("xyyx", "bc"), ("xyz", "bc"), ("x", ""), ("xxx", "")],
)
async def test_who_has_other_weights_takes_over_a_state_and_all_say_so(weights: str, different: str) -> None:
    names = list("abcd"[: len(weights)])
    meeting = InMemoryRendezvous(names)
    notes: dict[str, list[str]] = {name: [] for name in names}
    servers = {name: ServersTogether(name, meeting.enter(name), LINK, note=notes[name].append) for name in names}
    taken: dict[str, str] = {}

    async def go(name: str, digest: str) -> list[str]:
        together = servers[name]
        try:
            return await together.begin(7, [f"{name}-00"], digest.encode(), lambda: f"{name} {together.turn}".encode())
        except StateBehind as ahead:
            taken[name], turn = ahead.state.decode().split()
            together.turn = int(turn)
            return await go(name, weights[names.index(ahead.server)])

    told = await asyncio.gather(*(go(name, digest) for name, digest in zip(names, weights, strict=True)))
    assert sorted(taken) == sorted(different)
    first = next((name for name in names if name not in different), "")
    assert set(taken.values()) <= {first}
    for name, others in zip(names, told, strict=True):
        assert others == [f"{other}-00" for other in names if other != name]
        assert len(notes[name]) == bool(different)
        if different:
            assert notes[name][0].startswith(f"before step 7 the weights of {', '.join(different)} were not those of ")
    assert len({together.turn for together in servers.values()}) == 1


async def test_servers_that_tell_no_weights_are_alike() -> None:
    meeting = InMemoryRendezvous(["a", "b"])
    servers = [ServersTogether(name, meeting.enter(name), LINK, note=pytest.fail) for name in ("a", "b")]
    hashes = (b"", b"x")
    await asyncio.gather(
        *(each.begin(1, [], digest, lambda: b"") for each, digest in zip(servers, hashes, strict=True))
    )


class Resting:
    """A training that is done."""

    def __init__(self, weight: float) -> None:
        self.kept = TrainingState(3, 0.5, 9.0, {"w": np.array([weight])}, {}, {"step": 12})

    def state(self) -> TrainingState:
        return self.kept

    def restore(self, state: TrainingState) -> None:
        self.kept = state


@pytest.mark.parametrize("answered", [0, 1, 2])
async def test_a_farewell_is_two_turns_and_waits_for_none_of_them_for_ever(
    answered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Long enough for a thread's turn on a busy machine: weights are hashed beside the loop.
    monkeypatch.setattr(run, "_FAREWELL_SECONDS", 0.5)
    monkeypatch.setattr(run, "_LAST_WORD_SECONDS", 0.5)
    taken: list[Position] = []

    class Parting(Noted):
        async def turn(self, position: Position, *rest: Any) -> TurnOutcome:
            taken.append(position)
            if len(taken) > answered:
                await asyncio.Event().wait()
            return await super().turn(position, *rest)

    training: Any = Resting(1.0)
    await run.say_farewell(ServersTogether("a", Parting(), LINK), training)
    assert taken == [Position(13, min(number, answered), Stage.BEGIN) for number in range(2)]


async def test_who_finds_in_the_end_that_its_weights_are_others_takes_them_over() -> None:
    meeting, weights = InMemoryRendezvous(list("abc")), {"a": 1.0, "b": 2.0, "c": 1.0}
    trainings: dict[str, Any] = {name: Resting(weight) for name, weight in weights.items()}
    entered = {name: ServersTogether(name, meeting.enter(name), LINK) for name in weights}

    async def part(name: str) -> None:
        await run.say_farewell(entered[name], trainings[name])
        meeting.leave(name)

    await asyncio.gather(*map(part, weights))
    assert {float(training.kept.weights["w"][0]) for training in trainings.values()} == {1.0}
