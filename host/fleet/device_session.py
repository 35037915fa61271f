"""The host's end of one device's stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import (
    DataError,
    DeviceCodeFailed,
    DeviceFailed,
    DeviceLost,
    DeviceSilent,
    OptimiserFailed,
    ProtocolError,
)
from firmware_agent.common.frames.frame_fields import Frame, TensorSpec
from firmware_agent.common.frames.session_frames import Failed, Hello, Slice, Tensors
from firmware_agent.common.slices import Array, Assembler
from firmware_agent.common.wire import AnyFrame, encode, unpack

# Messages that may wait to be handled before the stream is held back.
_INBOX_MESSAGES = 16
# Frames that a session may have handled without waiting for any; then everything else has its turn.
_FRAMES_IN_A_ROW = 64

F = TypeVar("F", bound=Frame)
G = TypeVar("G", bound=Frame)
T = TypeVar("T")
ExpectedTensors = Sequence[TensorSpec] | Callable[[Sequence[TensorSpec]], Sequence[TensorSpec]]
"""The tensors that an exchange has, or what returns them, given those that are announced."""
OnArrival = Callable[[str, int, int, bool], None]
"""Is told of a slice: its tensor, its first byte and the one past its last, and whether it was not there before."""


class Stream(Protocol):
    """What a session needs of gRPC's servicer context."""

    async def read(self) -> Any:
        """Return the next message, or a non-bytes end mark."""

    async def write(self, message: bytes) -> None:
        """Send a message."""


@dataclass
class Collection:
    """Tensors that come together in a session.

    Attributes:
        assembler: takes their slices; None while slices are frames like all others.
        on_arrival: is told of each.
        spare: memory that was given back.
    """

    assembler: Assembler | None = None
    on_arrival: OnArrival = lambda *_: None
    spare: dict[str, Array] = field(default_factory=dict)


class DeviceSession:
    """Frames to and from one device, in order, until the stream ends."""

    def __init__(self, hello: Hello, stream: Stream) -> None:
        """Take a stream whose `hello` was accepted."""
        self.hello = hello
        self.sent_bytes = 0
        self.received_bytes = 0
        self._stream = stream
        # The frames of each message that has come in, and what is left of the one that is being handled.
        self._inbox: asyncio.Queue[list[AnyFrame]] = asyncio.Queue(_INBOX_MESSAGES)
        self._frames: deque[AnyFrame] = deque()
        self._in_a_row = 0
        self._closed = asyncio.Event()
        self._guards: set[asyncio.Timeout] = set()
        self._lost: Callable[[], DeviceLost] = partial(DeviceLost, hello.device)  # until `close` says why
        self._collection = Collection()
        self._turn = asyncio.Lock()

    @property
    def device(self) -> str:
        """The device's name."""
        return self.hello.device

    @property
    def closed(self) -> bool:
        """Whether the stream has ended."""
        return self._closed.is_set()

    async def wait_closed(self) -> None:
        """Wait until the stream has ended."""
        await self._closed.wait()

    def close(self, why: str = "the device closed the stream", kind: type[DeviceLost] = DeviceLost) -> None:
        """End the session; whoever waits for a frame gets an error of this kind with this reason."""
        if not self.closed:
            self._lost = partial(kind, f"{self.device}: {why}")
            self._closed.set()
            for guard in self._guards:
                if not guard.expired():
                    guard.reschedule(0.0)

    async def pump(self) -> None:
        """Read frames into the inbox until the stream ends or a frame is malformed."""
        try:
            while isinstance(data := await self._stream.read(), bytes):
                self.received_bytes += len(data)
                await self._inbox.put(unpack(data))
        except ProtocolError as error:
            self.close(str(error))
        finally:
            self.close()

    async def send(self, frame: Frame, deadline: Deadline | None = None) -> None:
        """Send one frame (see `send_encoded`)."""
        await self.send_encoded(encode(frame), deadline)

    async def send_encoded(self, data: bytes, deadline: Deadline | None = None) -> None:
        """Send one message (see `wire.pack`); without a deadline, for as long as the stream lives.

        Several may send at once: gRPC takes one message at a time, so they take turns.

        Raises:
            DeviceLost: the stream has ended, or the device took nothing until the deadline.
        """
        await self._while_open(self._write, deadline, data)

    async def _write(self, data: bytes) -> None:
        async with self._turn:
            self.sent_bytes += len(data)  # before: the device may answer before the write returns
            await self._stream.write(data)

    def collect(self, assembler: Assembler | None, on_arrival: OnArrival = lambda *_: None) -> None:
        """Have an assembler take all slices that are received from now on; None has them returned as frames again."""
        self._collection.assembler, self._collection.on_arrival = assembler, on_arrival

    async def receive(self, deadline: Deadline | None) -> AnyFrame:
        """Return the next frame, but for slices that are collected; without a deadline, whenever it comes.

        One task at a time receives.

        Raises:
            DeviceLost: the stream has ended, or the deadline passed: a device that is silent so long counts as dead.
            DeviceFailed: the device says that its task failed; a DeviceCodeFailed, that the user's code did.
            ProtocolError: a slice does not belong to what is collected.
        """
        while isinstance(frame := await self._next_frame(deadline), Slice):
            if (assembler := self._collection.assembler) is None:
                break
            self._collection.on_arrival(
                frame.tensor, frame.offset, frame.offset + len(frame.data), assembler.add(frame)
            )
        if isinstance(frame, Failed):
            raise self._failed(frame)
        return frame

    async def _next_frame(self, deadline: Deadline | None) -> AnyFrame:
        if not self._frames:
            if self._inbox.empty():
                self._in_a_row = 0
                self._frames.extend(await self._while_open(self._inbox.get, deadline))
            else:
                await self._give_way()
                self._frames.extend(self._inbox.get_nowait())
            self._in_a_row += len(self._frames)
        return self._frames.popleft()

    def _failed(self, frame: Failed) -> DeviceFailed:
        told = f"{self.device}: {frame.task} failed in the device: {frame.error}"
        if not frame.user:
            return DeviceFailed(told)
        code = {DataError.__name__: "data set", OptimiserFailed.__name__: "optimizer"}.get(frame.exception, "model")
        return DeviceCodeFailed(told, code, frame.error, frame.traceback)

    async def _give_way(self) -> None:
        """Let everything else have its turn if this device has kept the host at work: it may never cease to send."""
        if self._in_a_row >= _FRAMES_IN_A_ROW:
            self._in_a_row = 0
            await asyncio.sleep(0)

    async def expect(self, kind: type[F], deadline: Deadline) -> F:
        """Return the next frame, which must be a `kind`.

        Raises:
            ProtocolError: it is another; the session is closed.
        """
        if not isinstance(frame := await self.receive(deadline), kind):
            raise self._broken(f"sent {type(frame).__name__} where {kind.__name__} was due")
        return frame

    async def receive_tensors(
        self,
        exchange: int,
        expected: ExpectedTensors,
        then: type[F],
        deadline: Deadline,
        or_else: type[G] | None = None,
    ) -> tuple[dict[str, Array], F | G]:
        """Collect an exchange's tensors up to its closing frame; `expected` says which may be announced.

        That frame is of kind `then`, or `or_else` if that is given.

        Raises:
            ProtocolError: the tensors are not the expected ones, or not whole; the session is closed.
        """
        try:
            announced = await self.expect(Tensors, deadline)
            spare, self._collection.spare = self._collection.spare, {}
            allowed = expected(announced.specs) if callable(expected) else expected
            assembler = Assembler(exchange, announced.specs, allowed, spare)
            self.collect(assembler)
            if not isinstance(frame := await self.receive(deadline), (then, or_else or then)):
                raise ProtocolError(f"sent {type(frame).__name__} where {then.__name__} was due")
            return assembler.arrays(), frame
        except ProtocolError as error:
            raise self._broken(str(error)) from error
        finally:
            self.collect(None)

    def recycle(self, arrays: dict[str, Array]) -> None:
        """Take back what `receive_tensors` returned: the next exchange overwrites it, and takes no new memory."""
        self._collection.spare = arrays

    def _broken(self, what: str) -> ProtocolError:
        self.close(what)
        return ProtocolError(f"{self.device}: {what}")

    async def _while_open(self, work: Callable[..., Awaitable[T]], deadline: Deadline | None, *arguments: object) -> T:
        """Return the result of `work`, unless the stream ends or the deadline passes first: `close` ends the guard."""
        if self.closed:
            raise self._lost()
        guard = asyncio.timeout(None if deadline is None else deadline.left_seconds)
        try:
            async with guard:
                self._guards.add(guard)
                try:
                    return await work(*arguments)
                finally:
                    self._guards.remove(guard)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            self.close("the stream broke")  # gRPC says so by cancelling the call
            raise self._lost() from None
        except Exception as error:  # whatever the transport raises, the device is out of reach
            if deadline is not None and guard.expired():
                self.close(f"silent for {deadline.seconds:.0f} s", DeviceSilent)
            self.close(f"the stream broke: {error}")  # no news if it is closed
            raise self._lost() from error
