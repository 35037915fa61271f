"""The worker beside a server's host: meets those of other servers, then takes turns with them (see `gloo_group`).

`csd-emu run --servers` starts it, and a new one whenever it ends: when a server is lost or comes, every worker ends,
and the next ones meet anew; hosts and their drives see nothing of that but a turn that takes longer. A worker keeps
nothing: what a turn needs comes from its host each time.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path

import msgspec

from csd_emu.config.servers_file import StoreSection
from firmware_agent.common.errors import CsdError
from host.training.multi_server.rendezvous import Attendance, group_prefix, meet, wait_for_next, watch_others
from host.training.multi_server.store.store_client import PATIENCE_SECONDS, StoreClient, connect
from host.training.multi_server.worker.worker_process import Arguments

# From the end of a meeting until the group must be there; gloo would wait as long as for a turn.
_MEET_SECONDS = 120.0
# So long a member may be silent meanwhile: importing torch keeps its threads from counting.
_IMPORT_SECONDS = 30.0


def main() -> None:
    """Meet the others, connect to the host, serve it; any error ends the process, and the host starts the next one."""
    parser = argparse.ArgumentParser(description="worker of csd-emu run --servers")
    parser.add_argument("arguments")
    arguments = msgspec.json.decode(parser.parse_args().arguments, type=Arguments)
    _watch(partial(_watch_host, arguments.silence_seconds))
    try:
        _take_part(arguments)
    except CsdError as error:
        sys.exit(f"csd-emu: {error}")


def _take_part(arguments: Arguments) -> None:
    address, port, key = arguments.store
    section = StoreSection(address=IPv4Address(address), port=port, key=key)
    run, server, silence = arguments.run, arguments.server, arguments.silence_seconds
    store = connect(section)
    store.limit(max(silence, PATIENCE_SECONDS))
    found = meet(store, run, server, Attendance(arguments.servers, arguments.least, silence))
    names = [name for name in arguments.servers if name in found.members]
    print(f"csd-emu: meeting {found.number} of {', '.join(names)}", flush=True)
    met, lost = threading.Event(), threading.Event()
    _watch(partial(_watch_meeting, connect(section), run, found.number))
    _watch(partial(_watch_silence, lost))
    _watch(lambda: "" if met.wait(_MEET_SECONDS) else f"the group was not there within {_MEET_SECONDS:.0f} s")
    watch_others(store, run, names, names.index(server), max(silence, _IMPORT_SECONDS), lost)
    # Not before: torch takes seconds to import, and others are waiting.
    from host.training.multi_server.worker.gloo_group import Worker, join_group

    group = join_group(names, server, connect(section), f"{group_prefix(run)}{found.number}/")
    watch_others(store, run, names, group.rank, silence, lost)
    met.set()
    # The host takes a worker that comes for one that has met the others.
    host = socket.socket(socket.AF_UNIX)
    host.connect(str(Path(arguments.host)))
    Worker(host, group).serve()


def _watch(find_end: Callable[[], str]) -> None:
    """End the process, from a thread, with the reason that `find_end` returns: nothing else ends a collective."""

    def watch() -> None:
        if why := find_end():
            print(f"csd-emu: this worker ends: {why}", flush=True)
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _watch_host(silence_seconds: float) -> str:
    """Return when the host has gone or hangs: a worker must not stand in for it. It writes a byte every second."""
    while select.select([0], [], [], max(silence_seconds, 2.0))[0] and os.read(0, 4096):
        pass
    return "its host has gone, or hangs"


def _watch_meeting(store: StoreClient, run: str, number: int) -> str:
    """Return when the group of this number is over, or the store is."""
    try:
        wait_for_next(store, run, number, threading.Event())
    except CsdError as error:
        return str(error)
    return "a server has come or come back, so all meet anew"


def _watch_silence(lost: threading.Event) -> str:
    lost.wait()
    return "nothing is heard of another server, or of the store"


if __name__ == "__main__":
    main()
