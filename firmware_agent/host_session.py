"""The drive's end of the stream: it dials the host, shows its certificate, and exchanges frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import TracebackType

import grpc

from firmware_agent.common.errors import AgentRefused, DeviceLost
from firmware_agent.common.frames.frame_fields import Frame
from firmware_agent.common.identity import Identity
from firmware_agent.common.wire import HOST_NAME, SERVICE_METHOD, AnyFrame, encode, unpack
from firmware_agent.outbox import Outbox

# Frames that may wait for the network before `send` blocks: bounds the memory that a slow link can take.
_OUTBOX_FRAMES = 4
# The host may be a process that is not there yet; gRPC's own back-off would grow to minutes.
_CHANNEL_OPTIONS = [
    ("grpc.ssl_target_name_override", HOST_NAME),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # In spite of its name: what a connection and its handshake may take, beside a host that is busy.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # A host that vanished without a word must be noticed, even while nothing is sent. In an emulated drive these are
    # seconds of its own clock, which a host on a busy machine, and a drive that was frozen, have no trouble to keep.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 60_000),
    ("grpc.http2.ping_timeout_ms", 60_000),
    ("grpc.http2.max_pings_without_data", 0),
]


class HostSession:
    """One stream to the host; a context manager. One thread receives, any may send.

    Attributes:
        outbox: what waits to be sent.
    """

    def __init__(self, identity: Identity) -> None:
        """Dial `identity.host_address` with the device's certificate; nothing is sent yet."""
        credentials = grpc.ssl_channel_credentials(
            identity.ca_pem.encode(), identity.key_pem.encode(), identity.certificate_pem.encode()
        )
        self._address = identity.host_address
        self._channel = grpc.secure_channel(identity.host_address, credentials, options=_CHANNEL_OPTIONS)
        self.outbox = Outbox(_OUTBOX_FRAMES)
        self._why = ""
        method: grpc.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(SERVICE_METHOD)
        self._call = method(self.outbox, wait_for_ready=True)
        self._messages: Iterator[bytes] = iter(self._call)
        self._frames: deque[AnyFrame] = deque()

    def send(self, frame: Frame) -> None:
        """Hand one frame to the stream (see `send_encoded`)."""
        self.send_encoded(encode(frame))

    def send_encoded(self, data: bytes) -> None:
        """Hand one message (see `wire.pack`) to the stream; blocks while the network is behind.

        Raises:
            DeviceLost: the stream has ended.
        """
        while True:
            if not self._call.is_active():
                raise DeviceLost(f"the stream to {self._address} has ended: {self._reason()}")
            if self.outbox.put(data, 1.0):
                return

    def receive(self) -> AnyFrame:
        """Return the next frame.

        Raises:
            DeviceLost: the stream has ended.
            AgentRefused: the host does not want this agent, now or later.
            ProtocolError: the host sent no valid frame.
        """
        if not self._frames:
            self._frames.extend(unpack(self._next_message()))
        return self._frames.popleft()

    def cancel(self, why: str = "") -> None:
        """End the stream, from any thread: whoever sends or receives gets `DeviceLost`, with this reason if given."""
        self._why = self._why or why
        self._call.cancel()

    def __enter__(self) -> HostSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call.cancel()
        self._channel.close()
        self.outbox.close()  # the thread that feeds the stream waits there

    def _next_message(self) -> bytes:
        try:
            return next(self._messages)
        except StopIteration:
            raise DeviceLost(f"{self._address} closed the stream") from None
        except grpc.RpcError as error:
            raise self._lost(error) from error

    def _reason(self) -> str:
        return self._why or str(self._call.details() or self._call.code())

    def _lost(self, error: grpc.RpcError) -> DeviceLost | AgentRefused:
        code = error.code() if isinstance(error, grpc.Call) else None
        if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
            return AgentRefused(f"{self._address}: {self._reason()}")
        return DeviceLost(f"{self._address}: {self._reason()}")
