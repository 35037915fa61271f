"""Workers' meetings: enough, and whoever comes in time; who falls silent is left out; a late one opens the next."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.errors import ProtocolError
from host.servers.beats import beat_key, host_key
from host.servers.rendezvous import (
    LAST_CALL_SECONDS,
    LIVING_CALL_SECONDS,
    Attendance,
    Meeting,
    group_prefix,
    meet,
    meeting_key,
    wait_for_next,
)
from tests.book import Book

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

    def come(self, server: str) -> Meeting:
        attendance = Attendance(SERVERS, self.least, SILENCE)
        return meet(self.book, "run", server, attendance, self.pause, lambda: self.now)

    def found(self) -> Meeting:
        return msgspec.json.decode(self.book.texts[meeting_key("run")], type=Meeting)

    def write(self, meeting: Meeting) -> None:
        self.book.texts[meeting_key("run")] = msgspec.json.encode(meeting).decode()


def test_one_that_may_be_alone_begins_after_the_last_call() -> None:
    hall = Hall()
    assert list(hall.come("a").members) == ["a"]
    assert hall.now >= LAST_CALL_SECONDS


def test_one_whose_host_lives_is_waited_for_and_one_whose_host_has_gone_is_not() -> None:
    """A worker that ended with the group before takes longer than the last call to come again on a busy machine."""
    hall = Hall()
    hall.hosts = ["a", "b"]

    def later() -> Iterator[None]:
        for _ in range(40):
            yield
        hall.alive = ["b"]
        hall.write(hall.found().joined("b", "mark"))

    hall.events = later()
    assert sorted(hall.come("a").members) == ["a", "b"]
    assert 10.0 < hall.now < LIVING_CALL_SECONDS
    gone = Hall()
    gone.book.counts[host_key("run", "b")] = 77
    assert list(gone.come("a").members) == ["a"]
    assert gone.now < 2 * LAST_CALL_SECONDS


def test_one_whose_host_lives_but_whose_worker_never_comes_is_not_waited_for_for_ever() -> None:
    hall = Hall()
    hall.hosts = ["b"]
    assert list(hall.come("a").members) == ["a"]
    assert LIVING_CALL_SECONDS <= hall.now < 2 * LIVING_CALL_SECONDS


def test_all_that_there_are_begin_at_once() -> None:
    hall = Hall(least=3)
    hall.alive = ["a", "b"]
    hall.write(Meeting(4, {"a": "x", "b": "y"}, complete=False))
    found = hall.come("c")
    assert (found.number, sorted(found.members), hall.now) == (4, ["a", "b", "c"], 0.25)


def test_whoever_comes_to_a_complete_meeting_opens_the_next() -> None:
    hall = Hall()
    hall.write(Meeting(4, {"a": "x", "b": "y"}))
    assert (hall.come("c").number, list(hall.found().members)) == (5, ["c"])


def test_too_few_wait_for_others() -> None:
    hall = Hall(least=2)

    def later() -> Iterator[None]:
        for _ in range(400):
            yield
        hall.alive = ["b"]
        hall.write(hall.found().joined("b", "mark"))

    hall.events = later()
    assert sorted(hall.come("a").members) == ["a", "b"]
    assert hall.now >= 100.0


def test_one_that_fell_silent_is_not_waited_for_and_not_taken_along() -> None:
    hall = Hall(least=2)
    hall.write(Meeting(1, {"a": "dead"}, complete=False))

    def later() -> Iterator[None]:
        while "a" in hall.found().members:
            yield
        hall.alive = ["b"]
        hall.write(hall.found().joined("b", "mark"))

    hall.events = later()
    assert sorted(hall.come("c").members) == ["b", "c"]
    assert hall.now > SILENCE


def test_one_that_others_gave_up_comes_again() -> None:
    hall = Hall(least=2)

    def later() -> Iterator[None]:
        yield
        hall.write(Meeting(1, {"b": "mark"}, complete=True))
        yield
        hall.alive = ["b"]
        hall.write(hall.found().joined("b", "another"))

    hall.events = later()
    found = hall.come("a")
    assert (found.number, sorted(found.members)) == (2, ["a", "b"])


def test_addresses_of_groups_that_are_over_are_forgotten() -> None:
    hall = Hall()
    hall.book.texts[f"{group_prefix('run')}1/x"] = "address"
    hall.come("a")
    assert list(hall.book.texts) == [meeting_key("run")]


@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_any_number_at_once_meet_in_one_meeting(count: int, least: int, data: st.DataObject) -> None:
    """Interleaved in any order, as threads of one store; all come, so all are in it."""
    names = [f"s{number}" for number in range(count)]
    book, found = Book(), dict[str, Meeting]()

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
    hall, over = Hall(), threading.Event()
    hall.write(Meeting(2, {"c": "z"}, complete=False))
    wait_for_next(hall.book, "run", 1, over)  # returns
    over.set()
    wait_for_next(hall.book, "run", 2, over)


@pytest.mark.parametrize("text", ["{", '{"number":"x"}', '{"members":[1]}'])
def test_what_is_no_meeting_is_refused(text: str) -> None:
    hall = Hall()
    hall.book.texts[meeting_key("run")] = text
    with pytest.raises(ProtocolError, match="no meeting"):
        hall.come("a")
