"""Turns between servers: whoever is furthest leads, the others catch up, and no step is taken twice."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import random
from dataclasses import dataclass, field

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from host.core.states.peer_servers import StateBehind
from host.training.multi_server.state_sync import Act, Position, Stage, diverged_servers, next_actions
from host.training.multi_server.worker.worker_link import TurnOutcome
from tests.support.examples import examples
from tests.support.in_memory_peers import InMemoryRendezvous, InMemoryTurns

ANYWHERE = st.builds(Position, st.integers(1, 3), st.integers(0, 2), st.sampled_from(Stage))
POSITIONS = st.lists(ANYWHERE, min_size=1, max_size=6)
LAST = 12
# A round ends with every so-many-th step.
ROUND_STEPS = 3


@given(POSITIONS)
def test_somebody_goes_on_or_hands_over(positions: list[Position]) -> None:
    doing, furthest = next_actions(positions), max(positions)
    assert len(doing) == len(positions)
    assert {Act.PROCEED, Act.GIVE} & set(doing)
    for act, position in zip(doing, positions, strict=True):
        if act in (Act.PROCEED, Act.GIVE, Act.WAIT):
            assert position == furthest
        else:
            assert position < furthest
    # The furthest go on together, or wait together until the others have their state.
    assert len({act for act in doing if act is not Act.GIVE} & {Act.PROCEED, Act.WAIT, Act.TAKE}) <= 2
    assert not (Act.PROCEED in doing and {Act.GIVE, Act.WAIT, Act.TAKE} & set(doing))


@given(POSITIONS)
@example([Position(2, 0, Stage.BEGIN), Position(1, 0, Stage.ROUND)])
@example([Position(1, 0, Stage.REDUCE), Position(1, 1, Stage.BEGIN)])
def test_a_state_is_handed_over_between_two_steps_alone_and_by_one_server(positions: list[Position]) -> None:
    doing, furthest = next_actions(positions), max(positions)
    between = furthest.stage is Stage.BEGIN and len(set(positions)) > 1
    assert (Act.TAKE in doing) == between
    assert doing.count(Act.GIVE) == int(between)
    if Act.WATCH in doing:
        assert furthest.stage is not Stage.BEGIN


@given(ANYWHERE, st.integers(1, 5))
def test_servers_at_one_place_go_on(position: Position, count: int) -> None:
    assert next_actions([position] * count) == [Act.PROCEED] * count


@given(st.lists(st.binary(max_size=1), min_size=1, max_size=6))
def test_whose_weights_are_not_those_of_most_is_found(hashes: list[bytes]) -> None:
    named = {f"s{number}": digest for number, digest in enumerate(hashes)}
    different = diverged_servers(named)
    alike = {digest for server, digest in named.items() if digest and server not in different}
    assert len(alike) == (1 if any(hashes) else 0)
    for server in different:
        assert named[server] not in {b"", *alike}
        # Nobody is outvoted by fewer; of as many the first one's count.
        count, most = hashes.count(named[server]), hashes.count(next(iter(alike)))
        assert count < most or (count == most and hashes.index(named[server]) > hashes.index(next(iter(alike))))


@dataclass
class Toy:
    """A server whose weights are what it has added up so far: each step's terms, which name step and server.

    Now and then nobody returns anything in a step, or the epoch is found to be over before one: it begins anew.
    """

    name: str
    turns: InMemoryTurns
    generator: random.Random
    step: int = 0
    taken: int = 0
    weights: float = 0.0
    # What came of all turns, taken by itself or by those whose state it has taken over.
    past: str = ""
    # Steps that it has applied by itself, and steps of which it has taken over what came of them.
    applied: list[int] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    there: dict[int, list[str]] = field(default_factory=dict)

    async def run(self) -> None:
        while self.step < LAST:
            with contextlib.suppress(StateBehind):
                try:
                    await self.take_step()
                except StateBehind as ahead:
                    step, taken, weights, self.past = ahead.state.decode().split(" ", 3)
                    self.step, self.taken, self.weights = int(step), int(taken), float(weights)
                    raise
        with contextlib.suppress(StateBehind):
            await self.turn(self.step + 1, Stage.BEGIN)

    async def take_step(self) -> None:
        number = self.step + 1
        await self.turn(number, Stage.BEGIN)
        if self.taken % 5 == 2:
            await self.turn(number, Stage.ROUND)
            return
        counts = float(self.generator.random() < 0.6)
        outcome = await self.turn(number, Stage.REDUCE, counts * (1000.0 * number + ord(self.name)), counts)
        if not outcome.doubles[1]:
            return
        self.weights += float(outcome.doubles[0] / outcome.doubles[1])
        self.step = number
        self.applied.append(number)
        self.there[number] = list(outcome.metas)
        if number % ROUND_STEPS == 0:
            await self.turn(number + 1, Stage.ROUND)
            self.rounds.append(number)

    async def turn(self, step: int, stage: Stage, *sums: float) -> TurnOutcome:
        position, doubles = Position(step, self.taken, stage), np.array(sums, np.float64)
        meta, no_singles = self.past.encode(), np.empty(0, np.float32)
        outcome = await self.turns.turn(position, meta, (no_singles, doubles), self.state)
        assert set(outcome.metas.values()) == {meta}, "servers with different pasts took a turn together"
        self.taken += 1
        told = f"{self.past}|{step}{stage.name}{','.join(outcome.metas)}{outcome.doubles.tolist()}"
        self.past = hashlib.sha256(told.encode()).hexdigest()
        return outcome

    def state(self) -> bytes:
        return f"{self.step} {self.taken} {self.weights!r} {self.past}".encode()


class World:
    """Servers that come, go and miss outcomes, at any moment."""

    def __init__(self, count: int, generator: random.Random) -> None:
        self.names = [chr(ord("a") + number) for number in range(count)]
        self.meeting, self.generator = InMemoryRendezvous(self.names), generator
        self.live: dict[str, tuple[Toy, asyncio.Task[None]]] = {}
        self.all: list[Toy] = []
        self.ended: list[Toy] = []

    def start(self, name: str) -> None:
        toy = Toy(name, self.meeting.enter(name), self.generator)
        self.all.append(toy)
        self.live[name] = toy, asyncio.create_task(toy.run())

    async def kill(self, name: str) -> None:
        _, task = self.live.pop(name)
        self.meeting.leave(name)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def happen(self) -> None:
        """One thing happens, or nothing, after any number of turns."""
        for _ in range(self.generator.randrange(12)):
            await asyncio.sleep(0)
        self.collect()
        what, name = self.generator.randrange(4), self.generator.choice(self.names)
        if what == 0 and name in self.live and len(self.live) > 1:
            await self.kill(name)
        elif what == 1 and name not in self.live and self.live:
            self.start(name)
        elif what == 2 and len(self.live) > 1:
            self.meeting.deaf = set(self.generator.sample(sorted(self.live), self.generator.randrange(len(self.live))))

    def collect(self) -> None:
        for name, (toy, task) in list(self.live.items()):
            if task.done():
                task.result()
                self.ended.append(toy)
                del self.live[name]
                self.meeting.leave(name)

    async def finish(self) -> None:
        while self.live:
            await asyncio.wait([task for _, task in self.live.values()], return_when=asyncio.FIRST_COMPLETED)
            self.collect()


@settings(max_examples=examples(60), deadline=None)
@given(count=st.integers(1, 4), events=st.integers(0, 40), seed=st.integers(0, 2**32))
def test_whatever_happens_all_end_alike_and_no_step_is_taken_twice(count: int, events: int, seed: int) -> None:
    async def play() -> World:
        world = World(count, random.Random(seed))
        for name in world.names:
            world.start(name)
        for _ in range(events):
            await world.happen()
        await asyncio.wait_for(world.finish(), 60)
        return world

    world = asyncio.run(play())
    assert world.ended
    assert {toy.step for toy in world.ended} == {LAST}
    assert len({toy.weights for toy in world.ended}) == 1
    for toy in world.all:
        assert toy.applied == sorted(set(toy.applied)), "a step was taken twice, or out of order"
        assert toy.rounds == sorted(set(toy.rounds))
    # Whoever applied a step did it with the same servers, and somebody applied each of them.
    by_step: dict[int, set[tuple[str, ...]]] = {}
    for toy, number in itertools.chain.from_iterable(((toy, number) for number in toy.applied) for toy in world.all):
        by_step.setdefault(number, set()).add(tuple(toy.there[number]))
    assert sorted(by_step) == list(range(1, LAST + 1))
    assert all(len(there) == 1 for there in by_step.values())
