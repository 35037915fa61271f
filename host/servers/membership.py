"""Who may take part: servers that have the same code and the same job, with clocks that agree."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Protocol

import msgspec

from csd_emu.servers import ServersConfig
from firmware_agent.errors import ConfigurationError, EnvironmentUnfit
from host.servers.beats import Counters, beat_key
from host.servers.store import check_clock, connect

_BEAT_SECONDS = 0.5
# A run of which nobody was heard for so long is over.
_DEAD_SECONDS = 5.0
_WAIT_SECONDS = 0.25
_RUN_BYTES = 4


class Book(Counters, Protocol):
    """A store's counters and texts."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set a text if it is the expected one, or if there is none and none is expected; return what is there then."""


def exporter_key(hall: str, server: str) -> str:
    """Return under which key a server's exporter is written."""
    return f"{hall}/exporter/{server}"


class Claim(msgspec.Struct, frozen=True):
    """What all servers of a run must have alike.

    Attributes:
        version: hash of csd-emu's code.
        servers: hash of servers file and arrays.
        job: hash of the job and all that its trajectory rests on.
        run: of this run; the first server draws it.
    """

    version: str
    servers: str
    job: str
    run: str = ""

    def differences(self, other: Claim) -> list[str]:
        """Return in what this differs from another server's."""
        named = {"version": "the version of csd-emu", "servers": "the servers file or an array file", "job": "the job"}
        return [what for field, what in named.items() if getattr(self, field) != getattr(other, field)]


@contextlib.contextmanager
def member(config: ServersConfig, server: str, claim: Claim) -> Iterator[str]:
    """Take part in the run of these servers while the block lasts, and return its name; the first one begins it.

    Raises:
        EnvironmentUnfit: the store cannot be reached, this server's clock is off, or it takes part already.
        ConfigurationError: another run goes on there, of another job or another version of csd-emu.
    """
    store, key = connect(config.store), f"{config.name}/run"
    try:
        check_clock(store, server)
        own = _join(store, key, claim, config, server)
        store.add(f"{own.run}/joined", 1)
    except (RuntimeError, msgspec.MsgspecError) as error:  # torch's errors are of the first kind
        raise EnvironmentUnfit(
            f"store: what answers at {config.store.address}:{config.store.port} is no csd-emu store ({error}); "
            "start one there"
        ) from error
    done = threading.Event()
    beating = connect(config.store)
    thread = threading.Thread(target=_beat, args=(beating, beat_key(own.run, f"host/{server}"), done), daemon=True)
    thread.start()
    try:
        yield own.run
    finally:
        done.set()
        thread.join()
        _leave(store, key, own)


def _join(store: Book, key: str, claim: Claim, config: ServersConfig, server: str) -> Claim:
    """Return the claim of the run that goes on, or that begins with this server."""
    while True:
        mine = msgspec.structs.replace(claim, run=secrets.token_hex(_RUN_BYTES))
        wanted = msgspec.json.encode(mine).decode()
        found = store.compare_set(key, "", wanted).decode()
        if found == wanted:
            return mine
        theirs = msgspec.json.decode(found, type=Claim)
        living = _living(store, theirs.run, config)
        if not living:
            store.compare_set(key, found, "")  # its servers have all gone without a word
            continue
        if server in living:
            raise EnvironmentUnfit(
                f"server {server} takes part already in this run; name another one with --server, or end the first"
            )
        if different := claim.differences(theirs):
            raise ConfigurationError(
                f"server {server} does not fit to {', '.join(living)}, where a run goes on: {' and '.join(different)} "
                "differ; use the same everywhere, or wait until that run is over"
            )
        return theirs


def _living(store: Book, run: str, config: ServersConfig) -> list[str]:
    """Return which servers' hosts give signs of life in a run."""
    keys = {name: beat_key(run, f"host/{name}") for name in config.names}
    before = {name: store.add(key, 0) for name, key in keys.items()}
    begin = time.monotonic()
    pause = threading.Event()
    while time.monotonic() - begin < _DEAD_SECONDS:
        pause.wait(_WAIT_SECONDS)
        if any(store.add(key, 0) != before[name] for name, key in keys.items()):
            pause.wait(2 * _BEAT_SECONDS)  # time for all to be heard
            return [name for name, key in keys.items() if store.add(key, 0) != before[name]]
    return []


def _beat(store: Book, key: str, done: threading.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the store has gone: those who train notice by themselves
        while True:
            store.add(key, 1)
            if done.wait(_BEAT_SECONDS):
                return


def _leave(store: Book, key: str, own: Claim) -> None:
    """Forget the run, if this was the last server of it; one that was lost without a word keeps it for a while."""
    with contextlib.suppress(RuntimeError):
        if store.add(f"{own.run}/left", 1) >= store.add(f"{own.run}/joined", 0):
            store.compare_set(key, msgspec.json.encode(own).decode(), "")
