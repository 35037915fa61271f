"""Rendezvous of workers, and heartbeats in the store.

A server that stops counting is lost, even if no connection to it has broken. The list of the next group's members is
one value in the store, replaced as a whole. A meeting is open until enough servers are there and no other came for a
while; then it is complete, and its members are the group. Whoever comes later opens the next one, which ends the group:
its workers see another number, and come too.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Event

import msgspec

from host.training.multi_server.store.store_client import Book, StoreLost, decoded

_BEATS_PER_SILENCE = 8


class FailureDetector:
    """Who has not been heard of for too long. Pure: counters and a clock in, names out."""

    def __init__(self, names: Sequence[str], limit_seconds: float, now: float) -> None:
        """Begin to listen to `names` at the time `now`, in seconds; all may be silent for `limit_seconds`."""
        self._limit_seconds = limit_seconds
        self._heard: dict[str, tuple[int | None, float]] = dict.fromkeys(names, (None, now))

    def hear(self, counts: Sequence[int], now: float) -> list[str]:
        """Take everyone's counters, in order, and return who is silent for too long."""
        for name, count in zip(self._heard, counts, strict=True):
            if self._heard[name][0] != count:
                self._heard[name] = (count, now)
        return [name for name, (_, last) in self._heard.items() if now - last > self._limit_seconds]


def beat_key(run: str, name: str) -> str:
    """Return the counter of one server."""
    return f"{run}/beat/{name}"


def host_key(run: str, server: str) -> str:
    """Return the counter of a server's host."""
    return beat_key(run, f"host/{server}")


def watch_others(
    store: Book,
    run: str,
    names: Sequence[str],
    own: int,
    silence_seconds: float,
    lost: threading.Event,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Count up one's own counter from a thread; `lost` is set once another one stands still.

    It is also set if the store cannot be reached, because then the others do not hear from this one either. A store
    behind a broken link raises no error and never answers; a second thread watches for that.
    """
    others = [name for rank, name in enumerate(names) if rank != own]
    answered = [clock()]

    def beat() -> None:
        silence = FailureDetector(others, silence_seconds, clock())
        try:
            while not lost.wait(silence_seconds / _BEATS_PER_SILENCE):
                store.add(beat_key(run, names[own]), 1)
                counts = [store.add(beat_key(run, name), 0) for name in others]
                answered[0] = clock()
                if silence.hear(counts, answered[0]):
                    lost.set()
        except StoreLost:
            lost.set()

    def watch() -> None:
        while not lost.wait(silence_seconds / _BEATS_PER_SILENCE):
            if clock() - answered[0] > silence_seconds:
                lost.set()

    for each in (beat, watch):
        threading.Thread(target=each, name=f"beats-{each.__name__}", daemon=True).start()


# Time to wait for missing servers once enough have joined. The longer limit is for a server whose host still sends
# heartbeats: its worker ended with the previous group and is being restarted.
LAST_CALL_SECONDS, LIVING_CALL_SECONDS = 3.0, 30.0
_LOOK_SECONDS = 0.25
_MARK_BYTES = 8


class RendezvousResult(msgspec.Struct, frozen=True):
    """One meeting.

    Attributes:
        number: grows with each.
        members: server -> mark of its worker, of those who have come.
        complete: nobody is waited for any more.
    """

    number: int = 0
    members: dict[str, str] = {}
    complete: bool = True

    def joined(self, server: str, mark: str) -> RendezvousResult:
        """Return the meeting with one who comes; of a complete one the next."""
        if self.complete:
            return RendezvousResult(self.number + 1, {server: mark}, complete=False)
        return msgspec.structs.replace(self, members={**self.members, server: mark})

    def without(self, servers: Sequence[str]) -> RendezvousResult:
        """Return the meeting without those of whom nothing is heard."""
        return msgspec.structs.replace(self, members={n: m for n, m in self.members.items() if n not in servers})


_MEETINGS = msgspec.json.Decoder(RendezvousResult)


class Attendance:
    """Judges an open meeting by what is heard of its members. Pure: counters and a clock in.

    Attributes:
        servers: all, in the order of the servers file.
    """

    def __init__(self, servers: Sequence[str], least: int, silence_seconds: float) -> None:
        """Prepare.

        Args:
            servers: all, in the order of the servers file.
            least: with fewer nobody begins.
            silence_seconds: one of whom nothing was heard for so long is not waited for.
        """
        self.servers, self._least, self._silence_seconds = servers, least, silence_seconds
        # By server and mark: its counter, when that moved last, and whether it ever did.
        self._heard: dict[tuple[str, str], tuple[int, float, bool]] = {}
        self._same: tuple[frozenset[str], float] = (frozenset(), 0.0)
        # By server: its host's counter, and when that moved last.
        self._hosts: dict[str, tuple[int, float | None]] = {}

    def silent(self, meeting: RendezvousResult, counts: Mapping[str, int], now: float) -> list[str]:
        """Take everyone's counters, and return who is silent for too long."""
        heard = {}
        for member in meeting.members.items():
            told = counts[member[0]]
            count, last, alive = self._heard.get(member, (told, now, False))
            heard[member] = (told, last, alive) if told == count else (told, now, True)
        self._heard = heard
        return [server for (server, _), (_, last, _) in heard.items() if now - last > self._silence_seconds]

    def hear_hosts(self, counts: Mapping[str, int], now: float) -> None:
        """Take what the servers' hosts have counted."""
        for server, count in counts.items():
            before, moved = self._hosts.get(server, (count, None))
            self._hosts[server] = count, (moved if count == before else now)

    def ready(self, meeting: RendezvousResult, now: float) -> bool:
        """Return whether the meeting is complete: all have joined, or enough have and no new one for a while.

        Everyone in it must have been heard (see `silent`): one that ended meanwhile is not waited for in the group.
        """
        missing = [moved for server, (_, moved) in self._hosts.items() if server not in meeting.members]
        living = any(moved is not None and now - moved <= LAST_CALL_SECONDS for moved in missing)
        call_seconds = LIVING_CALL_SECONDS if living else LAST_CALL_SECONDS
        there = frozenset(meeting.members.values())
        if there != self._same[0]:
            self._same = (there, now)
        enough = len(there) >= self._least and now - self._same[1] >= call_seconds
        alive = all(self._heard[member][2] for member in meeting.members.items())
        return alive and (enough or len(there) == len(self.servers))


def meeting_key(run: str) -> str:
    """Return the key of the text that says who meets."""
    return f"{run}/meeting"


def group_prefix(run: str) -> str:
    """Return with what the keys of all groups begin, in which gloo keeps its addresses."""
    return f"{run}/group/"


def meet(
    store: Book,
    run: str,
    server: str,
    attendance: Attendance,
    pause: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> RendezvousResult:
    """Come to the next meeting, wait until it is complete, and return it.

    Raises:
        ProtocolError: what is written there is no meeting.
        StoreLost: the store has gone.
    """
    mark, key = secrets.token_hex(_MARK_BYTES), meeting_key(run)
    while True:
        text, found = _read(store, key)
        mine = found.members.get(server) == mark
        if mine and found.complete:
            return found
        if not mine:
            _exchange(store, key, text, found.joined(server, mark))
            continue
        store.add(_waits_key(run, server), 1)
        counts = {name: store.add(_waits_key(run, name), 0) for name in found.members}
        attendance.hear_hosts({name: store.add(host_key(run, name), 0) for name in attendance.servers}, clock())
        if silent := attendance.silent(found, counts, clock()):
            _exchange(store, key, text, found.without(silent))
        elif attendance.ready(found, clock()):
            store.forget(group_prefix(run))  # of groups that are over
            _exchange(store, key, text, msgspec.structs.replace(found, complete=True))
        else:
            pause(_LOOK_SECONDS)


def wait_for_next(store: Book, run: str, number: int, over: Event) -> None:
    """Return when a later meeting than this has been opened, or `over` is set."""
    while not over.wait(_LOOK_SECONDS):
        if _read(store, meeting_key(run))[1].number != number:
            return


def _waits_key(run: str, server: str) -> str:
    return beat_key(run, f"waits/{server}")


def _read(store: Book, key: str) -> tuple[str, RendezvousResult]:
    (text,) = store.read([key])
    if not text:
        return "", RendezvousResult()
    wrong = "store: what is written there is no meeting", "; start the store anew"
    return text.decode(errors="replace"), decoded(_MEETINGS, text, *wrong)


def _exchange(store: Book, key: str, text: str, wanted: RendezvousResult) -> None:
    """Write a meeting if the text is still the one found; who is too late looks again."""
    store.compare_set(key, text, msgspec.json.encode(wanted).decode())
