"""Admission of servers: those that have the same code and job, one run at a time."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from csd_emu.config.servers_file import ServersConfig
from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit
from host.training.multi_server.rendezvous import host_key
from host.training.multi_server.store.store_client import Book, StoreLost, connect

PACKAGES = ("csd_emu", "firmware_agent", "host", "csd_lab")


def code_sha256(root: Path = Path(__file__).parents[3]) -> str:
    """Return the hash of all Python files of csd-emu's packages below `root`, with their paths."""
    digest = hashlib.sha256()
    for path in sorted(file for package in PACKAGES for file in (root / package).rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


_BEAT_SECONDS = 0.5
# A run with no heartbeat for this long is over.
_DEAD_SECONDS = 5.0
_WAIT_SECONDS = 0.25
# Time limit for signing off at the store.
_LEAVE_SECONDS = 5.0
_MARK_BYTES = 4


def _run_key(config: ServersConfig) -> str:
    return f"{config.name}/run"


def exporter_key(server_group: str, server: str) -> str:
    """Return under which key a server's exporter is written."""
    return f"{server_group}/exporter/{server}"


class Claim(msgspec.Struct, frozen=True):
    """What all servers of a run must have alike, and who they are.

    Attributes:
        version: hash of csd-emu's code.
        servers: hash of servers file and arrays.
        job: hash of the job and all that its trajectory rests on.
        run: of this run; the first server draws it.
        members: server -> mark of its process, of those that have joined and not left; one that was lost without a
            word stays among them.
    """

    version: str
    servers: str
    job: str
    run: str = ""
    members: dict[str, str] = {}

    def differences(self, other: Claim) -> list[str]:
        """Return in what this differs from another server's."""
        named = {"version": "the version of csd-emu", "servers": "the servers file or an array file", "job": "the job"}
        return [what for field, what in named.items() if getattr(self, field) != getattr(other, field)]


@contextlib.contextmanager
def member(config: ServersConfig, server: str, claim: Claim) -> Iterator[str]:
    """Take part in the run of these servers while the block lasts, and return its name; the first one begins it.

    Raises:
        EnvironmentUnfit: the store cannot be reached, or this server takes part already.
        ConfigurationError: another run goes on there, of another job or another version of csd-emu.
    """
    store, key = connect(config.store), _run_key(config)
    try:
        mark = secrets.token_hex(_MARK_BYTES)
        run = _join(store, key, claim, config, (server, mark))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EnvironmentUnfit(
            f"store: what is written at {config.store.address}:{config.store.port} is no run ({error}); start it anew"
        ) from error
    done = threading.Event()
    thread = threading.Thread(target=_stay, args=(store, key, run, (server, mark), done), name="member", daemon=True)
    thread.start()
    try:
        yield run
    finally:
        done.set()
        thread.join(_LEAVE_SECONDS)  # of a store that is cut off nobody knows when it answers


def _join(store: Book, key: str, claim: Claim, config: ServersConfig, own: tuple[str, str]) -> str:
    """Return the run that goes on, or that begins with this server, whose name and mark are `own`.

    Who has joined and who has left is in one text, which is exchanged whole: of two who change it at once one looks
    again.
    """
    server, mark = own
    while True:
        found, theirs = _read(store, key)
        if theirs is None or not (living := _living(store, theirs.run, config)):  # gone without a word, all of them
            if theirs is not None:
                store.forget(f"{theirs.run}/")
            theirs = msgspec.structs.replace(claim, run=secrets.token_hex(_MARK_BYTES), members={})
        else:
            _check(claim, theirs, living, server)
        wanted = msgspec.structs.replace(theirs, members={**theirs.members, server: mark})
        if _exchange(store, key, found, wanted):
            store.add(host_key(wanted.run, server), 1)
            return wanted.run


def _read(store: Book, key: str) -> tuple[str, Claim | None]:
    """Return the text of the run that goes on, and what it says; "" and None if there is none."""
    found = store.compare_set(key, "", "").decode()
    return found, msgspec.json.decode(found, type=Claim) if found else None


def _check(claim: Claim, theirs: Claim, living: Sequence[str], server: str) -> None:
    if server in living:
        raise EnvironmentUnfit(
            f"server {server} takes part already in this run; name another one with --server, or end the first"
        )
    if different := claim.differences(theirs):
        raise ConfigurationError(
            f"server {server} does not fit to {', '.join(living)}, where a run goes on: {' and '.join(different)} "
            "differ; use the same everywhere, or wait until that run is over"
        )


def _exchange(store: Book, key: str, found: str, wanted: Claim) -> bool:
    """Write a claim if the text is still the one found, and return whether it was."""
    text = msgspec.json.encode(wanted).decode() if wanted.members else ""
    return store.compare_set(key, found, text).decode() == text


def host_beats(store: Book, config: ServersConfig) -> list[int]:
    """Return what the servers' hosts have counted in the run that goes on, in order; zeros if there is none."""
    _, claim = _read(store, _run_key(config))
    run = None if claim is None else claim.run
    return [0 if run is None else store.add(host_key(run, name), 0) for name in config.names]


def _living(store: Book, run: str, config: ServersConfig) -> list[str]:
    """Return which servers' hosts give signs of life in a run.

    A counter that falls is none: another server has forgotten the run.
    """
    keys = {name: host_key(run, name) for name in config.names}
    before = {name: store.add(key, 0) for name, key in keys.items()}
    begin = time.monotonic()
    pause = threading.Event()
    while time.monotonic() - begin < _DEAD_SECONDS:
        pause.wait(_WAIT_SECONDS)
        if any(store.add(key, 0) > before[name] for name, key in keys.items()):
            pause.wait(2 * _BEAT_SECONDS)  # time for all to be heard
            return [name for name, key in keys.items() if store.add(key, 0) > before[name]]
    return []


def _stay(store: Book, key: str, run: str, own: tuple[str, str], done: threading.Event) -> None:
    """Give signs of life until `done`, then leave."""
    with contextlib.suppress(StoreLost):  # the store has gone: those who train notice by themselves
        while not done.wait(_BEAT_SECONDS):
            store.add(host_key(run, own[0]), 1)
        _leave(store, key, run, own)


def _leave(store: Book, key: str, run: str, own: tuple[str, str]) -> None:
    """Leave a run, and forget it with its last server; one that was lost without a word keeps it for a while."""
    while True:
        found, claim = _read(store, key)
        if claim is None or claim.run != run or own not in claim.members.items():
            return  # it was taken for dead, and another process has its place
        members = {server: mark for server, mark in claim.members.items() if (server, mark) != own}
        if _exchange(store, key, found, msgspec.structs.replace(claim, members=members)):
            if not members:
                store.forget(f"{run}/")
            return
