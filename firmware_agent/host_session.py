"""The drive's end of the stream: it dials the host, shows its certificate, and exchanges frames.

What waits to be sent is in the outbox: messages in order, and between them slices in the order of a send queue.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType

import grpc

from firmware_agent.common.errors import AgentRefused, DeviceLost
from firmware_agent.common.frames.frame_fields import Frame
from firmware_agent.common.frames.session_frames import Received
from firmware_agent.common.identity import Identity
from firmware_agent.common.send_queue import Piece, SendQueue, TransferSettings
from firmware_agent.common.wire import HOST_NAME, SERVICE_METHOD, AnyFrame, encode, join, unpack

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
Encode = Callable[[Piece], Iterator[bytes]]
"""Makes the messages of a piece, at the moment at which it leaves."""
OnStall = Callable[[str], None]
"""Is told, once, that the peer has acknowledged nothing for too long."""


class Outbox:
    """An iterator of the messages that a stream takes, for the one thread that feeds it; filled from any thread.

    Messages go first, then acknowledgements, then slices: a slice is chosen when the stream has room for it, not when
    it became ready. What was given to `put_last` follows when no slice waits any more.
    """

    def __init__(self, most: int, now: Callable[[], float] = time.monotonic) -> None:
        """Begin empty.

        Args:
            most: `put` waits while so many messages wait.
            now: returns monotonic seconds.
        """
        self._most, self._now = most, now
        self._changed = threading.Condition()
        self._messages: deque[bytes] = deque()
        self._last: deque[Callable[[], bytes]] = deque()
        self._read: dict[int, int] = {}
        self._queue = SendQueue(TransferSettings())
        self._frames: Iterator[bytes] = iter(())
        self._encode: Encode = lambda _: iter(())
        self._stall: tuple[float, OnStall] = 0.0, lambda _: None
        # When a piece last left, or credit came back.
        self._progress = 0.0
        self._closed = False
        self._joined: deque[bytes] = deque()

    def put(self, message: bytes, seconds: float) -> bool:
        """Add a message behind those that wait; return whether there was room within so many seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._messages) < self._most or self._closed, seconds):
                return False
            self._messages.append(message)
            self._changed.notify_all()
            return True

    def close(self) -> None:
        """End the iteration, whatever waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def send_slices(self, encode_piece: Encode, stall_seconds: float, on_stall: OnStall) -> None:
        """Be ready for slices, which `encode_piece` makes.

        If slices wait and the peer acknowledges none of those under way for `stall_seconds`, `on_stall` is called, and
        the iteration ends.
        """
        with self._changed:
            self._encode, self._stall = encode_piece, (stall_seconds, on_stall)

    def change(self, sending: TransferSettings) -> None:
        """Send by other settings from now on."""
        with self._changed:
            self._queue.change(sending)
            self._changed.notify_all()

    def offer(self, exchange: int, order: int, tensor: str, size_bytes: int) -> None:
        """Add a whole tensor's bytes to what may be sent, behind what was put last when nothing waited any more."""
        with self._changed:
            if not self._queue.queued_bytes:
                self._messages.extend(make() for make in self._last)
                self._last.clear()
            self._queue.offer(exchange, order, tensor, 0, size_bytes)
            self._changed.notify_all()

    def put_last(self, message: Callable[[], bytes]) -> None:
        """Add a message that leaves behind all slices that wait; it is made then."""
        with self._changed:
            self._last.append(message)
            self._changed.notify_all()

    def add_read(self, exchange: int, size_bytes: int) -> None:
        """Record that this many bytes of the peer's slices were read, to be acknowledged."""
        with self._changed:
            self._read[exchange] = self._read.get(exchange, 0) + size_bytes
            self._changed.notify_all()

    def acknowledge(self, size_bytes: int) -> None:
        """Take back the credit of slices that the peer has read.

        Raises:
            ProtocolError: so much is not under way.
        """
        with self._changed:
            self._queue.acknowledge(size_bytes)
            self._progress = self._now()
            self._changed.notify_all()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """Return the next message, small frames that wait together; waits until there is one.

        Raises:
            StopIteration: the outbox is closed.
        """
        if not self._joined:
            self._joined.extend(join(self._next_frame(), self._take_frame))
        return self._joined.popleft()

    def _next_frame(self) -> bytes:
        while (frame := self._take_frame()) is None:
            self._wait()
        return frame

    def _take_frame(self) -> bytes | None:
        """Return what leaves next, if anything can leave now."""
        while True:
            with self._changed:
                if (message := self._small()) is not None:
                    return message
            # Encoded without the lock: nobody is kept waiting meanwhile.
            if (frame := next(self._frames, None)) is not None:
                return frame
            with self._changed:
                if self._messages or self._read:
                    continue
                if (piece := self._queue.next()) is None:
                    return self._last.popleft()() if self._last and not self._queue.queued_bytes else None
                self._progress, self._frames = self._now(), self._encode(piece)

    def _small(self) -> bytes | None:
        """Return a message that no slice goes before."""
        if self._closed:
            raise StopIteration
        if self._messages:
            self._changed.notify_all()
            return self._messages.popleft()
        if self._read:
            exchange = min(self._read)
            return encode(Received(exchange, self._read.pop(exchange)))
        return None

    def _wait(self) -> None:
        """Wait until something changes; slices that wait for credit do so until the peer counts as stalled."""
        with self._changed:
            queue, queued = self._queue, self._queue.queued_bytes
            if self._closed or self._messages or self._read or (self._last and not queued):
                return
            if not queued:
                self._changed.wait()
                return
            if (credit := queue.sending.credit_bytes) is None or queue.in_flight_bytes < credit:
                return
            seconds, on_stall = self._stall
            if (left_seconds := self._progress + seconds - self._now()) > 0:
                self._changed.wait(left_seconds)
                return
            self._closed = True
            on_stall(
                f"the host has acknowledged none of {queue.in_flight_bytes} bytes under way for {seconds:.0f} s, and "
                f"{queued} more wait"
            )


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
