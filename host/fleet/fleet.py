"""The devices that have dialled in: one gRPC server, one session per device, stale incarnations fenced off."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping
from ipaddress import IPv4Address

import grpc
import grpc.aio

from csd_emu.util.open_files import allow_open_files
from firmware_agent.common.errors import EnvironmentUnfit, ProtocolError
from firmware_agent.common.frames.frame_fields import MAX_FRAME_BYTES
from firmware_agent.common.frames.session_frames import Hello, Welcome
from firmware_agent.common.wire import SERVICE_METHOD, decode, encode
from host.core.records import EventKind, OnEvent
from host.fleet.admission import STRANGER, Admission, ExpectedDevice, HelloRules
from host.fleet.certificates import HostKeys
from host.fleet.device_session import DeviceSession
from host.fleet.enrolment_authority import CertificateCheck

log = logging.getLogger(__name__)

LOOPBACK = IPv4Address("127.0.0.1")
_HELLO_SECONDS = 20.0
_GRACE_SECONDS = 1.0
# How long a call waits for its answer that there is no room for it.
_CROWDED_SECONDS = 1.0
# Calls that wait for nothing: those that are being answered.
_PASSING_CALLS = 256
# Connections beside two for each drive (one may be about to end): of those who dial and are not known yet. gRPC knows
# no peer before TLS, so that one who opens them and says nothing is kept from closing the door by their number alone.
_DOOR_CONNECTIONS = 4096
# Of them, where files are few.
_LEAST_DOOR_CONNECTIONS = 64
_OPTIONS = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
    ("grpc.max_send_message_length", MAX_FRAME_BYTES),
    # Agents ask every 30 s whether the host is still there, and gRPC itself, while much comes in, how fast the link is:
    # by default both are taken for an attack. So many pings faster than that, nothing being sent to the drive, are one.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 100),
    # A drive has one stream, for a moment two.
    ("grpc.max_concurrent_streams", 2),
    ("grpc.max_metadata_size", 8 << 10),
    ("grpc.absolute_max_metadata_size", 16 << 10),
    # Connections without TLS, and with TLS but without a stream, end. An emulated drive's is opened by QEMU before its
    # agent dials, and what is left of the time must do for a handshake beside a busy host: an agent's own limit is 5 s.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 20_000),
]
# From so many drives on gRPC does not probe how much each link could carry. A probe is a ping for every message, a
# quarter of what a small one costs, and it lets a window grow to megabytes. A few drives gain from that; a thousand
# share the host's own link.
_MANY_DRIVES = 256
_MANY_OPTIONS = [("grpc.http2.bdp_probe", 0)]


def check_port(address: IPv4Address, port: int | None, remedy: str = "free it, or set another host.port") -> None:
    """Return if `port` can be listened on, or is None: for a command to fail before it has begun.

    Raises:
        EnvironmentUnfit: it is in use; the message ends with `remedy`.
    """
    if port is not None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((str(address), port))
            except OSError as error:
                raise _cannot_listen(address, port, error.strerror, remedy) from error


def _cannot_listen(address: IPv4Address, port: int, why: str | None, remedy: str) -> EnvironmentUnfit:
    return EnvironmentUnfit(f"host.port: cannot listen on {address}:{port} ({why}); {remedy}")


class Fleet:
    """Listens for the devices of one array; an async context manager.

    Attributes:
        port: that is listened on.
        newcomer: the event that is set when next a device joins; each time there is a new one.
    """

    def __init__(
        self,
        expected: Mapping[str, ExpectedDevice],
        keys: HostKeys,
        port: int,
        on_event: OnEvent = lambda *_: None,
        address: IPv4Address = LOOPBACK,
        certificates: CertificateCheck | None = None,
    ) -> None:
        """Prepare to listen.

        Args:
            expected: device name -> what its hello must show; any other device is refused.
            keys: the host's credential and the authority that devices must be signed by.
            port: TCP port, 0 for any free one.
            on_event: called with device, what happened, and more about it when a device joins, leaves or is refused.
            address: this machine's own, on which to listen.
            certificates: whose certificates are let in; None: all that the authority has signed.
        """
        self._certificates, self._rules = certificates, HelloRules(expected)
        self._sessions: dict[str, DeviceSession] = {}
        self._joined = {device: asyncio.Event() for device in expected}
        self.newcomer = asyncio.Event()
        self._keys, self._address, self.port, self._on_event = keys, address, port, on_event
        self._known: set[str] = set()
        self._server: grpc.aio.Server | None = None
        self._door = Admission(expected)

    async def __aenter__(self) -> Fleet:
        drives = len(self._joined)
        most = ("grpc.max_allowed_incoming_connections", _most_connections(drives, allow_open_files(drives)))
        self._server = grpc.aio.server(
            options=[*_OPTIONS, most, *(_MANY_OPTIONS if drives >= _MANY_DRIVES else [])],
            maximum_concurrent_rpcs=drives + 2 * self._door.most + _PASSING_CALLS,
        )
        _, _, method = SERVICE_METHOD.rpartition("/")
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._serve)
        service = SERVICE_METHOD.strip("/").partition("/")[0]
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        credential = self._keys.credential
        credentials = grpc.ssl_server_credentials(
            [(credential.key_pem.encode(), credential.certificate_pem.encode())],
            root_certificates=self._keys.ca_pem.encode(),
            require_client_auth=True,
        )
        try:
            self.port = self._server.add_secure_port(f"{self._address}:{self.port}", credentials)
        except RuntimeError as error:
            raise _cannot_listen(self._address, self.port, "in use?", "free it, or set another host.port") from error
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for session in self._sessions.values():
            session.close("the host ends")
        if self._server is not None:
            await self._server.stop(_GRACE_SECONDS)

    async def joined(self, device: str) -> None:
        """Wait until `device` has a session."""
        await self._joined[device].wait()

    def session(self, device: str) -> DeviceSession | None:
        """Return the live session of `device`, if it has one."""
        return self._sessions.get(device)

    def sessions(self) -> dict[str, DeviceSession]:
        """Return all live sessions, in the array's order of devices."""
        live = {device: session for device, session in self._sessions.items() if not session.closed}
        return {device: live[device] for device in self._joined if device in live}

    def cut(self, device: str) -> None:
        """End the session of `device`, and let it dial in vain until it is healed."""
        self._door.cut.add(device)
        if (session := self._sessions.get(device)) is not None:
            session.close("cut off from the host")

    def heal(self, device: str) -> None:
        """Let a device that was cut off dial in again."""
        self._door.cut.discard(device)

    async def _serve(self, _: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        device = _peer_name(context)
        hello = await self._meet(device, context)
        # Before the next await: an older twin that is being welcomed meanwhile must find itself stale.
        self._rules.welcome(device, hello)
        await context.write(encode(Welcome()))
        if not self._rules.is_stale(device, hello) and device not in self._door.cut:
            await self._hold(DeviceSession(hello, context))
        if self._rules.is_stale(device, hello):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "a newer incarnation of this device has joined")

    async def _meet(self, device: str, context: grpc.aio.ServicerContext[bytes, bytes]) -> Hello:
        """Return the hello of a device that is welcome; end any other's call, which raises.

        Who comes with a certificate that does not count is a stranger, whatever its name: it takes no place of the
        device's, nor does the device wait for what it did.
        """
        caller = STRANGER
        try:
            self._look_at_certificate(device, context)
            caller = device
            hello = await self._await_hello(device, context)
        except ProtocolError as error:
            await self._refuse(device, caller, error)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
            raise
        self._door.accept(device)
        return hello

    async def _await_hello(self, device: str, context: grpc.aio.ServicerContext[bytes, bytes]) -> Hello:
        """Return the hello that comes while the call has one of the door's places.

        Raises:
            ProtocolError: it is not welcome.
        """
        if not self._door.enter(device):
            await self._detain(device, _CROWDED_SECONDS)
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{device} dials too often")
        try:
            await asyncio.sleep(self._door.pace(device))
            hello = await self._read_hello(device, context)
            if device in self._door.cut:
                # Not a refusal: the agent shall go on dialling, as one would whose network is gone.
                await context.abort(grpc.StatusCode.UNAVAILABLE, f"{device} is cut off")
            return hello
        finally:
            self._door.leave(device)

    def _look_at_certificate(self, device: str, context: grpc.aio.ServicerContext[bytes, bytes]) -> int | None:
        """Return the serial of a certificate that would count from now on, None if it does already.

        Raises:
            ProtocolError: it does not count.
        """
        if self._certificates is None:
            return None
        return self._certificates.check(device, context.auth_context().get("x509_pem_cert", []))

    async def _detain(self, caller: str, seconds: float) -> None:
        """Have a call that is refused wait for it, unless so many do already."""
        if seconds and self._door.detain(caller):
            try:
                await asyncio.sleep(seconds)
            finally:
                self._door.release(caller)

    async def _refuse(self, device: str, caller: str, error: ProtocolError) -> None:
        """Write down that a hello was refused; one who does not cease has to wait for it."""
        for (name, _), count in self._door.budget.take_counted().items():
            log.warning("refused: %s, %d times more in the last minute", name, count)
        if self._door.budget.admits(device, EventKind.REFUSED):
            log.warning("refused: %s", error)
        self._on_event(device, EventKind.REFUSED, str(error))
        await self._detain(caller, self._door.refuse(caller))

    async def _hold(self, session: DeviceSession) -> None:
        """Keep a welcome device's session until it ends."""
        self._register(session)
        pump = asyncio.ensure_future(session.pump())
        try:
            await session.wait_closed()
        finally:
            pump.cancel()
            session.close("the stream was cancelled")
            if self._sessions.get(session.device) is session:
                del self._sessions[session.device]
                self._joined[session.device].clear()
                self._on_event(session.device, EventKind.LEFT, "")

    async def _read_hello(self, device: str, context: grpc.aio.ServicerContext[bytes, bytes]) -> Hello:
        """Return the first frame, if it is a hello that this array accepts.

        Raises:
            ProtocolError: it is not; the message says why.
        """
        try:
            data = await asyncio.wait_for(context.read(), _HELLO_SECONDS)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"{device} said nothing for {_HELLO_SECONDS:.0f} s")
            raise
        hello = decode(data) if isinstance(data, bytes) else None
        if not isinstance(hello, Hello):
            raise ProtocolError(f"{device} did not begin with a hello")
        self._rules.check(device, hello)
        # Once more: it may have been revoked meanwhile.
        if self._certificates is not None and (serial := self._look_at_certificate(device, context)) is not None:
            if adopted := await asyncio.to_thread(self._certificates.adopt, device, serial):
                self._on_event(device, EventKind.ADOPTED, adopted)
            self._rules.check(device, hello)  # a newer incarnation may have joined meanwhile
        return hello

    def _register(self, session: DeviceSession) -> None:
        device = session.device
        if (earlier := self._sessions.get(device)) is not None:
            earlier.close("the device has dialled again")
        self._sessions[device] = session
        self._joined[device].set()
        self.newcomer.set()
        self.newcomer = asyncio.Event()
        self._on_event(device, EventKind.REJOINED if device in self._known else EventKind.JOINED, "")
        self._known.add(device)


def _most_connections(drives: int, spare: int) -> int:
    """Return how many connections may be open at once, `spare` being the files that no drive needs."""
    return drives + max(_LEAST_DOOR_CONNECTIONS, min(drives + _DOOR_CONNECTIONS, spare))


def _peer_name(context: grpc.aio.ServicerContext[bytes, bytes]) -> str:
    names = list(context.auth_context().get("x509_common_name", []))
    return names[0].decode(errors="replace") if names else "(no certificate)"
