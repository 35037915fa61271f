"""The worker beside a server's host: meets those of other servers, then takes turns with them (`host.servers.group`).

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
from ipaddress import IPv4Address
from pathlib import Path

import msgspec

from csd_emu.servers import StoreSection
from firmware_agent.errors import CsdError
from host.servers.beats import watch_others
from host.servers.rendezvous import Attendance, group_prefix, meet, wait_for_next
from host.servers.store_client import PATIENCE_SECONDS, StoreClient, connect
from host.servers.store_messages import StoreLost
from host.servers.worker_arguments import Arguments

# From the end of a meeting until the group must be there; gloo would wait as long as for a turn.
_MEET_SECONDS = 120.0
# So long a member may be silent meanwhile: importing torch keeps its threads from counting.
_IMPORT_SECONDS = 30.0


def main() -> None:
    """Meet the others, connect to the host, serve it; any error ends the process, and the host starts the next one."""
    parser = argparse.ArgumentParser(description="worker of csd-emu run --servers")
    parser.add_argument("arguments")
    arguments = msgspec.json.decode(parser.parse_args().arguments, type=Arguments)
    ends = threading.Event()
    for task in (_watch_host, _end_when):
        threading.Thread(target=task, args=(ends, arguments.silence_seconds), name=task.__name__, daemon=True).start()
    try:
        _take_part(arguments, ends)
    except CsdError as error:
        sys.exit(f"csd-emu: {error}")


def _take_part(arguments: Arguments, ends: threading.Event) -> None:
    address, port, key = arguments.store
    section = StoreSection(address=IPv4Address(address), port=port, key=key)
    run, server, silence = arguments.run, arguments.server, arguments.silence_seconds
    store = connect(section)
    store.limit(max(silence, PATIENCE_SECONDS))
    found = meet(store, run, server, Attendance(arguments.servers, arguments.least, silence))
    names = [name for name in arguments.servers if name in found.members]
    threading.Thread(target=_end_with, args=(connect(section), run, found.number, ends), daemon=True).start()
    watch_others(store, run, names, names.index(server), max(silence, _IMPORT_SECONDS), ends)
    patience = threading.Timer(_MEET_SECONDS, ends.set)
    patience.daemon = True
    patience.start()
    # Not before: torch takes seconds to import, and others are waiting.
    from host.servers.group import Worker, join_group

    group = join_group(names, server, connect(section), f"{group_prefix(run)}{found.number}/")
    watch_others(store, run, names, group.rank, silence, ends)
    patience.cancel()
    # The host takes a worker that comes for one that has met the others.
    host = socket.socket(socket.AF_UNIX)
    host.connect(str(Path(arguments.host)))
    Worker(host, group).serve()


def _end_with(store: StoreClient, run: str, number: int, ends: threading.Event) -> None:
    """Set `ends` when the group of this number is over, or the store is."""
    try:
        wait_for_next(store, run, number, ends)
    except (StoreLost, CsdError):
        pass
    finally:
        ends.set()


def _watch_host(ends: threading.Event, silence_seconds: float) -> None:
    """Set `ends` when the host has gone or hangs: a worker must not stand in for it. It writes a byte every second."""
    while select.select([0], [], [], max(silence_seconds, 2.0))[0] and os.read(0, 4096):
        pass
    ends.set()


def _end_when(ends: threading.Event, _: float) -> None:
    """End the process when `ends` is set: nothing else ends a collective."""
    ends.wait()
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
