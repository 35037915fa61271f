"""Who gets in, over real gRPC and TLS on loopback: the agent's `HostSession` in threads against the host's `Fleet`."""

import asyncio
import itertools
import os
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import numpy as np
import pytest

from csd_emu.util.deadline import Deadline
from firmware_agent import host_session as session_module
from firmware_agent.common.errors import AgentRefused, DeviceLost, EnvironmentUnfit, ProtocolError
from firmware_agent.common.frames.frame_fields import MAX_SLICE_BYTES
from firmware_agent.common.frames.session_frames import Hello, Ready, Tensors, Trained, Welcome
from firmware_agent.common.identity import Identity
from firmware_agent.common.slices import cut_slices, make_slice, tensor_specs
from firmware_agent.common.wire import HOST_NAME, SERVICE_METHOD, AnyFrame, encode
from firmware_agent.host_session import HostSession
from host.core.event_budget import MOST_LISTED
from host.core.records import EventKind
from host.fleet import fleet as fleet_module
from host.fleet.admission import Admission, ExpectedDevice
from host.fleet.certificates import Authority, HostKeys
from host.fleet.fleet import Fleet
from tests.support.fakes import JOB, SECONDS, hello

Call = tuple[grpc.StatusCode, str]
DEVICES = ("csd-00", "csd-01")


class Lab:
    """A listening fleet, the authority behind it, and the sessions that dial it."""

    def __init__(self, fleet: Fleet, authority: Authority, events: list[tuple[str, EventKind, str]]) -> None:
        self.fleet, self.authority, self.events = fleet, authority, events
        self.sessions: list[HostSession] = []

    def identity(self, device: str = "csd-00", authority: Authority | None = None, **changes: Any) -> Identity:
        credential = (authority or self.authority).issue_device(device)
        identity = Identity(
            array="lab",
            device=device,
            incarnation=1,
            host_address=f"127.0.0.1:{self.fleet.port}",
            clock="wall",
            unix_seconds=time.time(),
            entropy=b"e" * 64,
            ca_pem=self.authority.ca_pem,
            certificate_pem=credential.certificate_pem,
            key_pem=credential.key_pem,
        )
        return msgspec.structs.replace(identity, **changes)

    async def dial(self, identity: Identity, greeting: Hello | None = None) -> tuple[HostSession, AnyFrame]:
        """Say hello as the agent does, and return what the host answers."""

        def greet() -> AnyFrame:
            session.send(greeting or hello(identity.device, identity.incarnation))
            return session.receive()

        session = HostSession(identity)
        self.sessions.append(session)
        answer = await asyncio.to_thread(greet)
        # The welcome is on its way before the host counts the device as joined.
        await until(lambda: self.incarnation(identity.device) == identity.incarnation)
        return session, answer

    def incarnation(self, device: str) -> int | None:
        session = self.fleet.session(device)
        return session.hello.incarnation if session is not None else None

    async def refusal(self, identity: Identity, greeting: Hello | None = None) -> str:
        with pytest.raises(AgentRefused) as caught:
            await self.dial(identity, greeting)
        return str(caught.value)


@pytest.fixture
async def lab(authority: Authority, host_keys: HostKeys) -> AsyncIterator[Lab]:
    events: list[tuple[str, EventKind, str]] = []
    expected = {device: ExpectedDevice(1, "a" * 64) for device in DEVICES}
    async with Fleet(expected, host_keys, 0, lambda *event: events.append(event)) as fleet:
        lab = Lab(fleet, authority, events)
        try:
            yield lab
        finally:
            for session in lab.sessions:
                await asyncio.to_thread(session.__exit__, None, None, None)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - gRPC gives no event for it
            await asyncio.sleep(0.005)


def raw_call(address: str, credentials: grpc.ChannelCredentials, *messages: bytes, hold: bool = True) -> Call:
    """Make a call with plain grpc, send `messages`, and return how it ended."""
    options = [("grpc.ssl_target_name_override", HOST_NAME), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(address, credentials, options=options) as channel:
        call = channel.stream_stream(SERVICE_METHOD)(iter(messages), timeout=20)  # type: ignore[var-annotated]
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
    return caught.value.code(), caught.value.details() or ""


async def test_a_device_of_the_array_is_welcome_and_frames_cross_both_ways(lab: Lab) -> None:
    session, answer = await lab.dial(lab.identity())
    assert answer == Welcome()
    await asyncio.wait_for(lab.fleet.joined("csd-00"), 20)
    host_side = lab.fleet.session("csd-00")
    assert host_side is not None
    arrays = {"w": np.random.default_rng(0).standard_normal(700_000).astype(np.float32)}  # several slices of 1 MiB
    specs, pieces = tensor_specs(arrays), list(cut_slices(1, arrays))

    def drive() -> AnyFrame:
        received = session.receive()
        for frame in (Tensors(1, specs), *pieces, Trained(1, 5, 1, 0.5, SECONDS, 5)):
            session.send(frame)
        return received

    running = asyncio.ensure_future(asyncio.to_thread(drive))
    await host_side.send(JOB)
    weights, trained = await host_side.receive_tensors(1, specs, Trained, Deadline(30))
    assert await running == JOB
    assert weights["w"].tobytes() == arrays["w"].tobytes()
    assert trained.samples == 5
    assert host_side.received_bytes > arrays["w"].nbytes


async def test_a_client_without_a_certificate_gets_nowhere(lab: Lab) -> None:
    credentials = grpc.ssl_channel_credentials(lab.authority.ca_pem.encode())
    code, _ = await asyncio.to_thread(raw_call, f"127.0.0.1:{lab.fleet.port}", credentials, encode(hello()))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert lab.events == []


async def test_a_client_without_tls_gets_nowhere(lab: Lab) -> None:
    def call() -> grpc.StatusCode:
        with grpc.insecure_channel(f"127.0.0.1:{lab.fleet.port}") as channel:
            method = channel.stream_stream(SERVICE_METHOD)  # type: ignore[var-annotated]
            with pytest.raises(grpc.RpcError) as caught:
                list(method(iter([encode(hello())]), timeout=20))
            return caught.value.code()

    assert await asyncio.to_thread(call) is grpc.StatusCode.UNAVAILABLE
    assert lab.events == []


async def test_a_certificate_of_another_authority_gets_nowhere(lab: Lab) -> None:
    foreign = Authority("lab").issue_device("csd-00")
    credentials = grpc.ssl_channel_credentials(
        lab.authority.ca_pem.encode(), foreign.key_pem.encode(), foreign.certificate_pem.encode()
    )
    code, _ = await asyncio.to_thread(raw_call, f"127.0.0.1:{lab.fleet.port}", credentials, encode(hello()))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert lab.events == []


async def test_a_host_of_another_authority_hears_nothing_of_the_agent(lab: Lab) -> None:
    credential = lab.authority.issue_device("csd-00")
    credentials = grpc.ssl_channel_credentials(
        Authority("lab").ca_pem.encode(), credential.key_pem.encode(), credential.certificate_pem.encode()
    )
    code, _ = await asyncio.to_thread(raw_call, f"127.0.0.1:{lab.fleet.port}", credentials, encode(hello()))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert lab.events == []


async def test_a_device_cannot_pose_as_the_host_of_another(lab: Lab, authority: Authority) -> None:
    """A drive's own certificate is signed by the array's authority, but is no server's."""
    keys = HostKeys(authority.ca_pem, authority.issue_device(HOST_NAME))
    async with Fleet({"csd-00": ExpectedDevice(1, "a" * 64)}, keys, 0) as impostor:
        credential = authority.issue_device("csd-00")
        credentials = grpc.ssl_channel_credentials(
            authority.ca_pem.encode(), credential.key_pem.encode(), credential.certificate_pem.encode()
        )
        code, _ = await asyncio.to_thread(raw_call, f"127.0.0.1:{impostor.port}", credentials, encode(hello()))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert impostor.sessions() == {}


async def test_a_hello_in_another_devices_name_is_refused(lab: Lab) -> None:
    why = await lab.refusal(lab.identity("csd-01"), hello("csd-00"))
    assert "csd-01's certificate came with a hello of csd-00" in why
    assert lab.fleet.sessions() == {}


async def test_an_unknown_device_a_wrong_shard_and_another_protocol_are_refused(lab: Lab) -> None:
    assert "csd-77 is not a device of this array" in await lab.refusal(lab.identity("csd-77"))
    assert "holds another shard" in await lab.refusal(lab.identity(), hello(manifest="b" * 64))
    strange = msgspec.structs.replace(hello(), protocol=99)
    assert "speaks protocol 99" in await lab.refusal(lab.identity(), strange)
    assert lab.fleet.sessions() == {}
    assert len(lab.events) == 3


async def test_an_older_incarnation_is_refused_while_the_newer_is_there_and_after_it_left(lab: Lab) -> None:
    newer, _ = await lab.dial(lab.identity(incarnation=2))
    assert "incarnation 1 is stale" in await lab.refusal(lab.identity(incarnation=1))
    assert lab.fleet.session("csd-00") is not None
    await asyncio.to_thread(newer.__exit__, None, None, None)
    await until(lambda: lab.fleet.session("csd-00") is None)
    assert "incarnation 1 is stale" in await lab.refusal(lab.identity(incarnation=1))


async def test_a_newer_incarnation_fences_the_older_off(lab: Lab) -> None:
    older, _ = await lab.dial(lab.identity(incarnation=1))
    waiting = asyncio.ensure_future(asyncio.to_thread(older.receive))
    await lab.dial(lab.identity(incarnation=2))
    with pytest.raises(AgentRefused, match="newer incarnation"):
        await asyncio.wait_for(waiting, 20)
    assert lab.incarnation("csd-00") == 2


async def test_a_redial_of_the_same_incarnation_replaces_the_session(lab: Lab) -> None:
    first, _ = await lab.dial(lab.identity())
    before = lab.fleet.session("csd-00")
    waiting = asyncio.ensure_future(asyncio.to_thread(first.receive))
    _, answer = await lab.dial(lab.identity())
    assert answer == Welcome()
    with pytest.raises(DeviceLost):
        await asyncio.wait_for(waiting, 20)
    assert before is not None
    assert before.closed
    await until(lambda: lab.fleet.session("csd-00") not in (None, before))


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (encode(Ready(5)), "did not begin with a hello"),
        (encode(make_slice(1, "w", 0, b"1234")), "did not begin with a hello"),
        (b"\xc1 garbage \xff", "malformed frame"),
        (b"", "malformed frame"),
    ],
)
async def test_a_stream_that_does_not_begin_with_a_hello_is_refused(lab: Lab, message: bytes, why: str) -> None:
    code, details = await asyncio.to_thread(
        raw_call, f"127.0.0.1:{lab.fleet.port}", client_credentials(lab.identity()), message
    )
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert why in details


async def test_a_stream_that_ends_without_a_word_is_refused(lab: Lab) -> None:
    code, details = await asyncio.to_thread(raw_call, f"127.0.0.1:{lab.fleet.port}", client_credentials(lab.identity()))
    assert (code, "did not begin with a hello" in details) == (grpc.StatusCode.PERMISSION_DENIED, True)


async def test_garbage_after_the_hello_ends_the_session_alone(lab: Lab) -> None:
    await lab.dial(lab.identity("csd-01"))
    identity, frames = lab.identity(), iter([encode(hello()), b"\xc1\xc1"])

    def call() -> list[bytes]:
        options = [("grpc.ssl_target_name_override", HOST_NAME), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.secure_channel(identity.host_address, client_credentials(identity), options=options) as channel:
            stop = itertools.chain(frames, endless(lambda: lab.fleet.session("csd-00") is None and len(seen) > 0))
            seen: list[bytes] = []
            for data in channel.stream_stream(SERVICE_METHOD)(stop, timeout=20):  # type: ignore[var-annotated]
                seen.append(data)
            return seen

    assert await asyncio.to_thread(call) == [encode(Welcome())]
    assert ("csd-00", EventKind.LEFT, "") in lab.events
    assert list(lab.fleet.sessions()) == ["csd-01"]


async def test_a_message_longer_than_the_wire_allows_ends_the_session(lab: Lab) -> None:
    session, _ = await lab.dial(lab.identity())
    session.send_encoded(bytes(2 * MAX_SLICE_BYTES))
    with pytest.raises(DeviceLost):
        await asyncio.to_thread(session.receive)
    await until(lambda: lab.fleet.session("csd-00") is None)


async def test_the_host_that_ends_tells_its_devices_to_dial_again(authority: Authority, host_keys: HostKeys) -> None:
    async with Fleet({"csd-00": ExpectedDevice(1, "a" * 64)}, host_keys, 0) as fleet:
        lab = Lab(fleet, authority, [])
        session, _ = await lab.dial(lab.identity())
    with pytest.raises(DeviceLost):
        await asyncio.to_thread(session.receive)
    await asyncio.to_thread(session.__exit__, None, None, None)


async def test_a_port_in_use_is_one_clear_error_that_names_the_key(lab: Lab, host_keys: HostKeys) -> None:
    with pytest.raises(EnvironmentUnfit, match=rf"host\.port: .*127\.0\.0\.1:{lab.fleet.port}.*in use") as caught:
        async with Fleet({}, host_keys, lab.fleet.port):
            pass
    assert caught.value.exit_code == 2


def client_credentials(identity: Identity) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        identity.ca_pem.encode(), identity.key_pem.encode(), identity.certificate_pem.encode()
    )


def endless(stop: Callable[[], bool]) -> Iterator[bytes]:
    """Keep a stream open, without a word, until `stop`."""
    while not stop():
        time.sleep(0.005)
    return
    yield b""


class Cable:
    """A TCP connection to the host that can be pulled out: from then on nothing arrives, and nothing is closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._tasks: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "Cable":
        self._server = await asyncio.start_server(self._plug_in, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.pull()
        for writer in self._writers:
            writer.close()
        if self._server is not None:
            self._server.close()

    async def pull(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _plug_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, far_writer]
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            self._tasks.append(asyncio.ensure_future(self._carry(source, sink)))

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()


async def test_an_agent_whose_cable_was_pulled_finds_out_though_nothing_was_closed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for a sign of life now and then; here every 50 ms, which the host does not take for an attack."""
    quick = {"grpc.keepalive_time_ms": 50, "grpc.keepalive_timeout_ms": 500, "grpc.http2.ping_timeout_ms": 500}
    options = [(name, quick.get(name, value)) for name, value in session_module._CHANNEL_OPTIONS]
    assert {name for name, _ in options} >= set(quick)
    monkeypatch.setattr(session_module, "_CHANNEL_OPTIONS", options)
    async with Cable(lab.fleet.port) as cable:
        session, answer = await lab.dial(lab.identity(host_address=f"127.0.0.1:{cable.port}"))
        assert answer == Welcome()
        receiving = asyncio.ensure_future(asyncio.to_thread(session.receive))
        await asyncio.wait({receiving}, timeout=1.0)
        assert not receiving.done()
        await cable.pull()
        with pytest.raises(DeviceLost):
            await asyncio.wait_for(receiving, 20)
        assert lab.fleet.session("csd-00") is not None  # nobody told the host
        _, answer = await lab.dial(lab.identity())
        assert answer == Welcome()


async def test_a_twin_of_the_same_incarnation_is_turned_away_for_good(lab: Lab) -> None:
    await lab.dial(lab.identity(), hello(instance="1" * 16))
    before = lab.fleet.session("csd-00")
    assert "has joined before this one" in await lab.refusal(lab.identity(), hello(instance="2" * 16))
    assert lab.fleet.session("csd-00") is before


async def test_a_device_that_is_cut_off_may_go_on_dialling(lab: Lab) -> None:
    session, _ = await lab.dial(lab.identity())
    lab.fleet.cut("csd-00")
    with pytest.raises(DeviceLost):
        await asyncio.to_thread(session.receive)
    with pytest.raises(DeviceLost, match="csd-00 is cut off"):
        await lab.dial(lab.identity())
    lab.fleet.heal("csd-00")
    _, answer = await lab.dial(lab.identity())
    assert answer == Welcome()


def idle(port: int, count: int) -> list[socket.socket]:
    """Open connections that never say a word, not even of TLS."""
    return [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_idle_strangers_are_bounded_and_soon_gone(
    authority: Authority, host_keys: HostKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,100 connections that say nothing took all files of a run; a session goes on, and the door is free again."""
    soon = [(name, 1000 if "timeout" in name else value) for name, value in fleet_module._OPTIONS]
    monkeypatch.setattr(fleet_module, "_OPTIONS", soon)
    monkeypatch.setattr(fleet_module, "_DOOR_CONNECTIONS", 128)
    async with Fleet({device: ExpectedDevice(1, "a" * 64) for device in DEVICES}, host_keys, 0) as fleet:
        lab = Lab(fleet, authority, [])
        await lab.dial(lab.identity())
        before = open_files()
        strangers = await asyncio.to_thread(idle, fleet.port, 1100)
        try:
            await asyncio.sleep(0.5)  # for gRPC to accept them
            assert open_files() - before - len(strangers) <= 2 * len(DEVICES) + 128
            session = fleet.session("csd-00")
            assert session is not None
            assert not session.closed
            async with asyncio.timeout(20):
                while open_files() - before - len(strangers) > 4:  # noqa: ASYNC110 - gRPC gives no event for it
                    await asyncio.sleep(0.05)
            _, answer = await lab.dial(lab.identity("csd-01"), hello("csd-01"))
            assert answer == Welcome()
        finally:
            for stranger in strangers:
                stranger.close()
            for each in lab.sessions:
                await asyncio.to_thread(each.__exit__, None, None, None)


async def test_hundreds_of_idle_strangers_do_not_close_the_door(lab: Lab) -> None:
    """220 that said nothing kept every drive out for as long as they were renewed; there are files for thousands."""
    strangers = await asyncio.to_thread(idle, lab.fleet.port, 1000)
    try:
        async with asyncio.timeout(8):  # before any of them has had its time
            for device in DEVICES:
                _, answer = await lab.dial(lab.identity(device), hello(device))
                assert answer == Welcome()
    finally:
        for stranger in strangers:
            stranger.close()


@pytest.mark.parametrize(("spare", "door"), [(-5, 64), (100, 100), (2000, 2000), (1 << 30, 8 + 4096)])
def test_the_door_has_the_files_that_no_drive_needs(spare: int, door: int) -> None:
    assert fleet_module._most_connections(8, spare) == 8 + door


async def test_a_device_that_holds_calls_without_a_hello_has_two_of_them(lab: Lab) -> None:
    identity, options = lab.identity(), [("grpc.ssl_target_name_override", HOST_NAME)]
    credentials = grpc.ssl_channel_credentials(
        identity.ca_pem.encode(), identity.key_pem.encode(), identity.certificate_pem.encode()
    )

    def hold(number: int) -> grpc.Channel:
        own = [*options, ("grpc.use_local_subchannel_pool", 1), ("number", number)]
        return grpc.secure_channel(identity.host_address, credentials, options=own)

    channels, silent = [hold(number) for number in range(3)], threading.Event()

    def say_nothing() -> Iterator[bytes]:
        silent.wait()
        yield from ()

    try:
        calls = [channel.stream_stream(SERVICE_METHOD)(say_nothing()) for channel in channels[:2]]  # type: ignore[var-annotated]
        await until(lambda: lab.fleet._door._waiting["csd-00"] == 2)
        with pytest.raises(grpc.RpcError) as caught:
            await asyncio.to_thread(list, channels[2].stream_stream(SERVICE_METHOD)(say_nothing(), timeout=20))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        _, answer = await lab.dial(lab.identity("csd-01"), hello("csd-01"))  # another device has its own places
        assert answer == Welcome()
        for call in calls:
            call.cancel()
        await until(lambda: not lab.fleet._door._waiting["csd-00"])
    finally:
        silent.set()
        for channel in channels:
            channel.close()


async def test_a_drive_that_asks_for_signs_of_life_without_end_is_let_go(lab: Lab, tmp_path: Path) -> None:
    """HTTP/2 by hand: gRPC's own client asks only so often."""
    identity, ping = lab.identity(), b"\0\0\x08\x06\0\0\0\0\0" + bytes(8)
    for name, text in (("ca", identity.ca_pem), ("own", identity.certificate_pem), ("key", identity.key_pem)):
        (tmp_path / name).write_text(text)
    context = ssl.create_default_context(cafile=str(tmp_path / "ca"))
    context.load_cert_chain(tmp_path / "own", tmp_path / "key")
    context.set_alpn_protocols(["h2"])

    def ask_for_ever() -> int:
        raw = socket.create_connection(("127.0.0.1", lab.fleet.port), 20)
        with context.wrap_socket(raw, server_hostname=HOST_NAME) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0")
            for asked in range(1_000_000):  # more than sockets hold unread
                try:
                    connection.sendall(ping)
                except OSError:
                    return asked
        return 1_000_000

    assert await asyncio.to_thread(ask_for_ever) < 1_000_000


async def test_refused_hellos_are_logged_a_few_times_and_then_counted(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Admission, "refuse", lambda *_: 0.0)
    monkeypatch.setattr(Admission, "pace", lambda *_: 0.0)
    for _ in range(MOST_LISTED + 10):
        await lab.fleet._refuse("csd-00", "csd-00", ProtocolError("csd-00 holds another shard"))
    assert caplog.text.count("holds another shard") == MOST_LISTED
