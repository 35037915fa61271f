"""Clones share their template's memory, its random generators included: their first draws must differ all the same."""

import asyncio

import pytest

from tests.contract.laboratory import Laboratory
from tests.support.machines import DAEMON_OUTLIVES

pytestmark = [pytest.mark.vm, pytest.mark.filterwarnings(DAEMON_OUTLIVES)]
# TLS record header (5), handshake header (4), version (2), then the client's random bytes and its session number.
RANDOM = slice(11, 43)
SESSION_NUMBER = slice(44, 76)
WAIT_SECONDS = 180.0


async def client_hello(lab: Laboratory, number: int) -> bytes:
    """Start a clone whose host is a plain socket, and return the first TLS record that it sends."""
    came: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        header = await reader.readexactly(5)
        record = header + await reader.readexactly(int.from_bytes(header[3:], "big"))
        if not came.done():
            came.set_result(record)
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        handle = await asyncio.to_thread(lab.engine.start, lab.plan(number, port))
        try:
            return await asyncio.wait_for(came, WAIT_SECONDS)
        finally:
            await asyncio.to_thread(lab.engine.stop, handle)


async def test_the_first_random_bytes_of_two_clones_differ(lab: Laboratory) -> None:
    async with lab.fleet() as fleet:
        handles = [await asyncio.to_thread(lab.engine.start, lab.plan(number, fleet.port)) for number in (0, 1)]
        for handle in handles:
            await lab.ready(handle, fleet)
        first = [session.hello.facts["first_random_sha256"] for session in fleet.sessions().values()]
    assert len(first) == 2
    assert len(set(first)) == 2


async def test_the_tls_randoms_of_two_clones_differ(lab: Laboratory) -> None:
    hellos = [await client_hello(lab, number) for number in (0, 1)]
    for hello in hellos:
        assert hello[0] == 22  # a handshake
        assert hello[5] == 1  # a client's hello
        assert len(set(hello[RANDOM])) > 8
    for part in (RANDOM, SESSION_NUMBER):
        one, other = (hello[part] for hello in hellos)
        assert one != other
