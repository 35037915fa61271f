"""Who may take part: the same code, the same job, each server once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.config.servers_file import ServersConfig
from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit
from host.training.multi_server import membership
from host.training.multi_server.membership import Claim, member
from host.training.multi_server.rendezvous import FailureDetector, beat_key, watch_others
from host.training.multi_server.store.store_client import StoreLost
from tests.support.book import KEY, Book

CONFIG = ServersConfig.model_validate(
    {"name": "hall", "servers": [{"name": name, "array": "array.yaml"} for name in ("a", "b", "c")]}
)
CLAIM = Claim("0.1.0 abc", "servers", "job")
NAMED = {"version": "the version of csd-emu", "servers": "the servers file or an array file", "job": "the job"}


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> Book:
    """A store that everyone reaches; beats follow each other so closely that nobody waits."""
    made = Book()
    monkeypatch.setattr(membership, "connect", lambda section: made)
    monkeypatch.setattr(membership, "_BEAT_SECONDS", 0.002)
    monkeypatch.setattr(membership, "_WAIT_SECONDS", 0.002)
    return made


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is not heard of at once is dead."""
    monkeypatch.setattr(membership, "_DEAD_SECONDS", 0.01)


@given(st.builds(Claim, *[st.sampled_from("xy")] * 4), st.builds(Claim, *[st.sampled_from("xy")] * 4))
def test_what_differs_is_named_and_a_runs_name_is_none_of_it(one: Claim, other: Claim) -> None:
    assert one.differences(other) == other.differences(one)
    assert set(one.differences(other)) == {
        what for field, what in NAMED.items() if getattr(one, field) != getattr(other, field)
    }


def test_servers_of_one_mind_take_part_in_one_run(book: Book) -> None:
    with member(CONFIG, "a", CLAIM) as first, member(CONFIG, "b", CLAIM) as second:
        assert first == second
        claim = book.claim()
        assert claim is not None
        assert (claim.run, sorted(claim.members)) == (first, ["a", "b"])
    assert book.texts[KEY] == ""  # the last one forgets it
    with member(CONFIG, "c", CLAIM) as another:
        assert another != first


@pytest.mark.parametrize("field", NAMED)
def test_who_differs_is_told_in_what_and_changes_nothing(book: Book, field: str) -> None:
    with member(CONFIG, "a", CLAIM) as run:
        before = dict(book.texts)
        other = msgspec.structs.replace(CLAIM, **{field: "another"})
        with (
            pytest.raises(ConfigurationError, match=f"server b does not fit to a, .*: {NAMED[field]} differ; use the"),
            member(CONFIG, "b", other),
        ):
            raise AssertionError("it takes part")
        assert book.texts == before
        assert beat_key(run, "host/b") not in {key for key, count in book.counts.items() if count}


def test_all_that_differs_is_named(book: Book) -> None:
    with (
        member(CONFIG, "a", CLAIM),
        pytest.raises(ConfigurationError, match=r"csd-emu and the servers file or an array file and the job differ"),
        member(CONFIG, "b", Claim("x", "y", "z")),
    ):
        raise AssertionError("it takes part")


def test_a_server_is_there_once(book: Book) -> None:
    with (
        member(CONFIG, "a", CLAIM),
        pytest.raises(EnvironmentUnfit, match=r"server a takes part already .*--server"),
        member(CONFIG, "a", CLAIM),
    ):
        raise AssertionError("it takes part twice")


@pytest.mark.usefixtures("hasty")
def test_a_run_of_which_nobody_is_heard_makes_way(book: Book) -> None:
    book.texts[KEY] = msgspec.json.encode(Claim("old", "old", "old", "dead")).decode()
    with member(CONFIG, "a", CLAIM) as run:
        assert run != "dead"
        claim = book.claim()
        assert claim is not None
        assert (claim.job, list(claim.members)) == ("job", ["a"])


@pytest.mark.usefixtures("hasty")
def test_a_dead_run_that_another_server_forgets_meanwhile_shows_no_life(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    book.texts[KEY] = msgspec.json.encode(msgspec.structs.replace(CLAIM, run="dead", members={"a": "lost"})).decode()
    for server in CONFIG.names:
        book.add(beat_key("dead", f"host/{server}"), 7)
    add, read = book.add, list[str]()

    def forgotten_after_a_look(key: str, amount: int) -> int:
        count = add(key, amount)
        read.append(key)
        if len(read) == len(CONFIG.names):
            book.forget("dead/")
        return count

    monkeypatch.setattr(book, "add", forgotten_after_a_look)
    with member(CONFIG, "a", CLAIM) as run:
        assert run != "dead"


def test_one_that_was_killed_comes_back_into_the_run_of_the_others(book: Book) -> None:
    with member(CONFIG, "a", CLAIM) as run:
        book.add_member("b")
        book.add(beat_key(run, "host/b"), 7)
        with member(CONFIG, "b", CLAIM) as again:
            assert again == run
            claim = book.claim()
            assert claim is not None
            assert claim.members["b"] != "lost"


def test_a_run_that_lost_a_server_is_kept_until_it_is_found_dead(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    with member(CONFIG, "a", CLAIM) as run:
        book.add_member("b")
    claim = book.claim()
    assert claim is not None
    assert (claim.run, list(claim.members)) == (run, ["b"])
    monkeypatch.setattr(membership, "_DEAD_SECONDS", 0.01)
    with member(CONFIG, "b", Claim("another", "", "")) as later:
        assert later != run


class Interrupted(Book):
    """A store in which something else happens before the text of the run is exchanged, once."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[], None] | None = None

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        if self.before is not None and expected != desired:
            before, self.before = self.before, None
            before()
        return super().compare_set(key, expected, desired)


@pytest.fixture
def interrupted(book: Book, monkeypatch: pytest.MonkeyPatch) -> Interrupted:
    made = Interrupted()
    monkeypatch.setattr(membership, "connect", lambda section: made)
    return made


def test_who_joins_while_the_last_one_leaves_is_in_a_run_that_others_find(interrupted: Interrupted) -> None:
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        first.enter_context(member(CONFIG, "a", CLAIM))
        interrupted.before = first.close  # between b's look and its word
        run = second.enter_context(member(CONFIG, "b", CLAIM))
        with member(CONFIG, "c", CLAIM) as third:
            assert third == run


def test_who_leaves_while_another_joins_takes_nobody_along(interrupted: Interrupted) -> None:
    with contextlib.ExitStack() as first:
        run = first.enter_context(member(CONFIG, "a", CLAIM))
        interrupted.before = lambda: interrupted.add_member("b")
        first.close()
        claim = interrupted.claim()
        assert claim is not None
        assert (claim.run, list(claim.members)) == (run, ["b"])


def test_of_two_that_begin_at_once_one_is_found_by_the_other(interrupted: Interrupted) -> None:
    with contextlib.ExitStack() as first:
        runs: list[str] = []
        interrupted.before = lambda: runs.append(first.enter_context(member(CONFIG, "a", CLAIM)))
        with member(CONFIG, "b", CLAIM) as second:
            assert runs == [second]


def test_of_one_server_twice_at_once_one_is_refused(interrupted: Interrupted) -> None:
    with contextlib.ExitStack() as other, contextlib.ExitStack() as first:
        other.enter_context(member(CONFIG, "c", CLAIM))
        begun: list[str] = []
        interrupted.before = lambda: begun.append(first.enter_context(member(CONFIG, "a", CLAIM)))
        with pytest.raises(EnvironmentUnfit, match="server a takes part already"), member(CONFIG, "a", CLAIM):
            raise AssertionError("it takes part twice")


def test_one_that_was_taken_for_dead_leaves_its_successor_alone(book: Book) -> None:
    with contextlib.ExitStack() as hung:
        run = hung.enter_context(member(CONFIG, "a", CLAIM))
        book.add_member("a")  # another process of it
        hung.close()
        claim = book.claim()
        assert claim is not None
        assert (claim.run, claim.members) == (run, {"a": "lost"})


def test_a_store_that_never_answers_again_holds_nobody_up(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "_LEAVE_SECONDS", 0.05)
    cut, let_go = threading.Event(), threading.Event()
    add = book.add

    def hang(key: str, amount: int, /) -> int:
        if cut.is_set():
            let_go.wait(60)
        return add(key, amount)

    monkeypatch.setattr(book, "add", hang)
    with member(CONFIG, "a", CLAIM):
        cut.set()
    let_go.set()


class Listening:
    """Three servers, of which each beats or not, step by step."""

    limit_seconds = 5.0


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.floats(0.1, 3.0)), max_size=30))
def test_silence_is_as_long_as_nothing_was_heard(events: list[tuple[bool, bool, float]]) -> None:
    now, counts, heard = 0.0, [0, 0], [0.0, 0.0]
    silence, first = FailureDetector(["x", "y"], Listening.limit_seconds, now), True
    for x, y, seconds in events:
        now += seconds
        for number, beats in enumerate((x, y)):
            counts[number] += beats
            if beats or first:
                heard[number] = now
        first = False
        silent = silence.hear(counts, now)
        assert silent == [name for name, last in zip("xy", heard, strict=True) if now - last > Listening.limit_seconds]


def test_a_store_that_is_gone_is_as_silent_as_a_server() -> None:
    class Gone(Book):
        def add(self, key: str, amount: int, /) -> int:
            raise StoreLost("connection reset")

    lost = threading.Event()
    watch_others(Gone(), "run", ["a", "b"], 0, 0.001, lost)
    assert lost.wait(30)


def test_a_store_that_never_answers_is_as_silent_as_a_server() -> None:
    let_go, lost = threading.Event(), threading.Event()

    class CutOff(Book):
        def add(self, key: str, amount: int, /) -> int:
            let_go.wait(60)
            return 0

    watch_others(CutOff(), "run", ["a", "b"], 0, 0.01, lost)
    assert lost.wait(30)
    let_go.set()


def test_who_stands_still_is_lost_and_who_beats_is_not() -> None:
    book, now = Book(), [0.0]

    def clock() -> float:  # an hour passes with every look after the first beat
        now[0] += 3600.0 if book.counts else 0.0
        return now[0]

    lost, alone = threading.Event(), threading.Event()
    watch_others(book, "run", ["a", "b"], 0, 0.001, lost, clock)
    assert lost.wait(30)
    assert book.counts[beat_key("run", "a")] > 0
    watch_others(book, "run", ["a"], 0, 60.0, alone)
    assert not alone.is_set()
    alone.set()
