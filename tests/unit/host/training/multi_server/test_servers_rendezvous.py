"""Workers' meetings: enough, and whoever comes in time; who falls silent is left out; a late one opens the next."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.errors import ProtocolError
from host.training.multi_server.rendezvous import (
    LAST_CALL_SECONDS,
    LIVING_CALL_SECONDS,
    Attendance,
    RendezvousResult,
    beat_key,
    group_prefix,
    host_key,
    meet,
    meeting_key,
    wait_for_next,
)
from tests.support.book import Book

SERVERS = ("a", "b", "c")
SILENCE = 5.0


class Hall:
    """A store, a clock that advances when somebody pauses, and what happens then."""

    def __init__(self, least: int = 1) -> None:
        self.book, self.least, self.now = Book(), least, 0.0
        self.alive: list[str] = []
        self.hosts: list[str] = []
        self.events: Iterator[object] = iter(())

    def pause(self, seconds: float) -> None:
        self.now += seconds
        for server in self.alive:
            self.book.add(beat_key("run", f"waits/{server}"), 1)
        for server in self.hosts:
            self.book.add(host_key("run", server), 1)
        next(self.events, None)
        assert self.now < 1000.0, "nobody comes to an end"

    def come(self, server: str) -> RendezvousResult:
        attendance = Attendance(SERVERS, self.least, SILENCE)
        return meet(self.book, "run", server, attendance, self.pause, lambda: self.now)

    def found(self) -> RendezvousResult:
        return msgspec.json.decode(self.book.texts[meeting_key("run")], type=RendezvousResult)

    def write(self, meeting: RendezvousResult) -> None:
        self.book.texts[meeting_key("run")] = msgspec.json.encode(meeting).decode()


def test_one_that_may_be_alone_begins_after_the_last_call() -> None:
    server_group = Hall()
    assert list(server_group.come("a").members) == ["a"]
    assert server_group.now >= LAST_CALL_SECONDS


def test_one_whose_host_lives_is_waited_for_and_one_whose_host_has_gone_is_not() -> None:
    """A worker that ended with the group before takes longer than the last call to come again on a busy machine."""
    server_group = Hall()
    server_group.hosts = ["a", "b"]

    def later() -> Iterator[None]:
        for _ in range(40):
            yield
        server_group.alive = ["b"]
        server_group.write(server_group.found().joined("b", "mark"))

    server_group.events = later()
    assert sorted(server_group.come("a").members) == ["a", "b"]
    assert 10.0 < server_group.now < LIVING_CALL_SECONDS
    gone = Hall()
    gone.book.counts[host_key("run", "b")] = 77
    assert list(gone.come("a").members) == ["a"]
    assert gone.now < 2 * LAST_CALL_SECONDS


def test_one_whose_host_lives_but_whose_worker_never_comes_is_not_waited_for_for_ever() -> None:
    server_group = Hall()
    server_group.hosts = ["b"]
    assert list(server_group.come("a").members) == ["a"]
    assert LIVING_CALL_SECONDS <= server_group.now < 2 * LIVING_CALL_SECONDS


def test_all_that_there_are_begin_at_once() -> None:
    server_group = Hall(least=3)
    server_group.alive = ["a", "b"]
    server_group.write(RendezvousResult(4, {"a": "x", "b": "y"}, complete=False))
    found = server_group.come("c")
    assert (found.number, sorted(found.members), server_group.now) == (4, ["a", "b", "c"], 0.25)


def test_whoever_comes_to_a_complete_meeting_opens_the_next() -> None:
    server_group = Hall()
    server_group.write(RendezvousResult(4, {"a": "x", "b": "y"}))
    assert (server_group.come("c").number, list(server_group.found().members)) == (5, ["c"])


def test_too_few_wait_for_others() -> None:
    server_group = Hall(least=2)

    def later() -> Iterator[None]:
        for _ in range(400):
            yield
        server_group.alive = ["b"]
        server_group.write(server_group.found().joined("b", "mark"))

    server_group.events = later()
    assert sorted(server_group.come("a").members) == ["a", "b"]
    assert server_group.now >= 100.0


def test_one_that_fell_silent_is_not_waited_for_and_not_taken_along() -> None:
    server_group = Hall(least=2)
    server_group.write(RendezvousResult(1, {"a": "dead"}, complete=False))

    def later() -> Iterator[None]:
        while "a" in server_group.found().members:
            yield
        server_group.alive = ["b"]
        server_group.write(server_group.found().joined("b", "mark"))

    server_group.events = later()
    assert sorted(server_group.come("c").members) == ["b", "c"]
    assert server_group.now > SILENCE


def test_one_that_others_gave_up_comes_again() -> None:
    server_group = Hall(least=2)

    def later() -> Iterator[None]:
        yield
        server_group.write(RendezvousResult(1, {"b": "mark"}, complete=True))
        yield
        server_group.alive = ["b"]
        server_group.write(server_group.found().joined("b", "another"))

    server_group.events = later()
    found = server_group.come("a")
    assert (found.number, sorted(found.members)) == (2, ["a", "b"])


def test_addresses_of_groups_that_are_over_are_forgotten() -> None:
    server_group = Hall()
    server_group.book.texts[f"{group_prefix('run')}1/x"] = "address"
    server_group.come("a")
    assert list(server_group.book.texts) == [meeting_key("run")]


@pytest.mark.slow
@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_any_number_at_once_meet_in_one_meeting(count: int, least: int, data: st.DataObject) -> None:
    """Interleaved in any order, as threads of one store; all come, so all are in it."""
    names = [f"s{number}" for number in range(count)]
    book, found = Book(), dict[str, RendezvousResult]()

    def come(name: str) -> None:
        found[name] = meet(book, "run", name, Attendance(names, min(least, count), 60.0), lambda _: None)

    order = data.draw(st.permutations(names))
    threads = [threading.Thread(target=come, args=(name,)) for name in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {tuple(sorted(meeting.members)) for meeting in found.values()} == {tuple(names)}
    assert len({meeting.number for meeting in found.values()}) == 1


def test_a_group_is_over_when_the_next_meeting_opens() -> None:
    server_group, over = Hall(), threading.Event()
    server_group.write(RendezvousResult(2, {"c": "z"}, complete=False))
    wait_for_next(server_group.book, "run", 1, over)  # returns
    over.set()
    wait_for_next(server_group.book, "run", 2, over)


@pytest.mark.parametrize("text", ["{", '{"number":"x"}', '{"members":[1]}'])
def test_what_is_no_meeting_is_refused(text: str) -> None:
    server_group = Hall()
    server_group.book.texts[meeting_key("run")] = text
    with pytest.raises(ProtocolError, match="no meeting"):
        server_group.come("a")
