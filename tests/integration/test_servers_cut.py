"""Servers in network namespaces with shaped links: links are cut in the middle, and come back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from csd_emu.engines.shaping.namespace_shaper import can_make_namespaces
from tests.support.commands import temporary_workshop, wait_until
from tests.support.server_processes import ARRAY, JOB, LONGEST_SECONDS, Servers, ended
from tests.support.switched import NETWORK, Switch

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not can_make_namespaces(), reason="needs root and iproute2"),
]
# A step's sums are some 150 kB: with this a step takes as long as its bytes, so that there is a middle of the run.
BYTES_PER_SECOND = 1e6
ROUND_STEPS = JOB["sync"]["round_steps"]


class Switched(Servers):
    """Three servers of one drive each, every one a machine of its own; the store is on the switch."""

    names = ("a", "b", "c")
    array_content = ARRAY | {"devices": [{"profile": "newport", "count": 1}]}

    def __init__(self, folder: Path) -> None:
        self.switch = Switch(self.names, BYTES_PER_SECOND)
        super().__init__(folder)

    def write_servers(self, **fields: Any) -> Path:
        place = {"network": NETWORK, "store": {"address": self.switch.address}}
        return super().write_servers(**place | fields)

    def command(self, server: str, arguments: Sequence[str]) -> list[str]:
        return self.switch.command(server if server in self.names else None, arguments)

    def numbers(self, server: str) -> list[int]:
        return [step["step"] for step in self.steps_of(server)]

    def present(self, server: str) -> list[tuple[str, ...]]:
        """Who took part, without repetitions."""
        return [
            there for there, _ in itertools.groupby(tuple(each["servers"]["present"]) for each in self.steps_of(server))
        ]

    def assert_every_step(self, steps: int, *servers: str) -> None:
        """Every step was taken once, and of servers that stayed none lacks one but by a meeting.

        A turn is not atomic (docs/servers.md): of the one that was broken off some may have the outcome. They go on
        with that step, and those that were behind take it over, so it is not in their records.
        """
        meetings = sum(each["servers"]["meetings"] for name in servers for each in self.steps_of(name))
        taken = {name: self.numbers(name) for name in servers}
        for numbers in taken.values():
            assert numbers == sorted(set(numbers))
            assert len(numbers) >= steps - meetings
            assert numbers[-1] == steps
        assert set(range(1, steps + 1)) == set().union(*taken.values())


@pytest.fixture
def servers() -> Iterator[Switched]:
    with temporary_workshop(Switched) as made, made.switch:
        try:
            yield made
        finally:
            made.close()


def test_a_server_whose_link_is_cut_is_not_waited_for_and_catches_up(servers: Switched) -> None:
    steps = 400
    job = servers.write("job.yaml", JOB | {"rounds": steps // ROUND_STEPS})
    servers.write_servers(membership={"min": 2, "wait": "180 s", "silence": "5 s"})
    with servers.store():
        running = {name: servers.train(name, job) for name in servers.names}
        wait_until(lambda: len(servers.numbers("b")) >= 10, LONGEST_SECONDS)
        servers.switch.cut("b")
        wait_until(lambda: ("a", "c") in servers.present("a"), LONGEST_SECONDS)
        alone = len(servers.numbers("a"))
        wait_until(lambda: len(servers.numbers("a")) >= alone + 10, LONGEST_SECONDS)
        assert running["b"].poll() is None  # it waits for the others, as long as `wait` says
        servers.switch.mend("b")
        for process in running.values():
            ended(process)
    everybody, others = ("a", "b", "c"), ("a", "c")
    servers.assert_every_step(steps, *others)
    for name in others:
        first, *between, last = servers.present(name)
        assert first == last == everybody
        assert others in between
        assert all(set(there) <= set(others) for there in between)
    back = servers.numbers("b")
    assert back == sorted(set(back))
    assert back[-1] == steps
    # What it lacks was taken while it was away, but for the step of the turn that the cut broke off.
    without = {each["step"] for each in servers.steps_of("a") if "b" not in each["servers"]["present"]}
    assert len(set(servers.numbers("a")) - set(back) - without) <= 1
    servers.assert_equal_weights(*servers.names)
    servers.assert_nothing_left()


def test_a_server_that_stays_cut_off_ends_with_a_message_and_the_others_finish(servers: Switched) -> None:
    steps = 150
    job = servers.write("job.yaml", JOB | {"rounds": steps // ROUND_STEPS})
    servers.write_servers(membership={"min": 2, "wait": "60 s", "silence": "5 s"})
    with servers.store():
        running = {name: servers.train(name, job) for name in servers.names}
        wait_until(lambda: len(servers.numbers("c")) >= 10, LONGEST_SECONDS)
        servers.switch.cut("c")
        told = ended(running["c"], 1)
        for name in ("a", "b"):
            ended(running[name])
    assert "for 60 s too few servers were there to go on (membership.min)" in " ".join(told.split())
    servers.assert_every_step(steps, "a", "b")
    servers.assert_equal_weights("a", "b")
    servers.assert_nothing_left()
