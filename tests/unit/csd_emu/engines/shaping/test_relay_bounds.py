import asyncio
import socket

from csd_emu.engines.shaping.relay import Relay, RelaySettings


async def test_no_more_connections_pass_than_there_are_files_for() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=50) as host:
        settings = RelaySettings("127.0.0.2", "127.0.0.1", host.getsockname()[1], 1e9, 0.0)
        async with Relay(settings) as relay:
            relay._most = 5

            def dial() -> int:
                clients = [socket.create_connection(("127.0.0.2", relay.port), 20) for _ in range(20)]
                closed = [client for client in clients[5:] if client.recv(1) == b""]
                for client in clients:
                    client.close()
                return len(closed)

            assert await asyncio.to_thread(dial) == 15
            async with asyncio.timeout(20):
                while relay._connections:  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(0.01)
