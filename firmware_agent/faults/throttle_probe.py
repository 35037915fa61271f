"""Probe of a device's reading and sending speed, by its own monotonic clock, to see what its throttles do."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from firmware_agent.common.errors import DeviceFailed
from firmware_agent.common.frames.measure_frames import Probed, ProbeRead, ProbeSend
from firmware_agent.common.handover import OWN_SINK
from firmware_agent.faults.io_limits import LOOPBACK, Throttle, bucket_bytes

INTERFACES = Path("/sys/class/net")
# Large, for each read costs wake-ups of the emulator, which a busy host delays.
READ_BYTES = 1 << 20
# What direct reads are aligned to: a multiple of every logical block size.
ALIGNMENT_BYTES = 4096
# io.max hands out its bytes in slices of 0.1 s; a read that took longer than this had to wait for the next one.
HELD_SECONDS = 0.04
LENGTH_BYTES = 8
_SEND_BYTES, _AHEAD_BYTES = 64 << 10, 256 << 10
_TIMEOUT_SECONDS = 120.0

Mark = tuple[float, int]


def probe_read(task: ProbeRead, device: Path, throttle: Throttle) -> Probed:
    """Read `task.size_bytes` from the block device past the page cache, from its start again whenever it ends.

    Returns:
        Data bytes, which are what `io.max` counts, and seconds, between the first and the last wait (see
        `between_waits`).

    Raises:
        DeviceFailed: the device cannot be read so, or the limit cannot be set.
    """
    limit = task.limit_bytes_per_second
    with throttle.limit_reads(device, limit) if limit else contextlib.nullcontext():
        try:
            with open(os.open(device, os.O_RDONLY | os.O_DIRECT), "rb", buffering=0) as stream:
                marks = list(read_marks(stream.fileno(), task.size_bytes, time.monotonic))
        except OSError as error:
            raise DeviceFailed(f"{device} cannot be read past the page cache ({error}); use qemu") from error
    return Probed(*between_waits(marks))


def read_marks(descriptor: int, size_bytes: int, now: Callable[[], float]) -> Iterator[Mark]:
    """Read `size_bytes` in blocks, round and round, and yield (seconds, bytes so far), first at the start.

    Raises:
        DeviceFailed: there is less than one aligned block.
    """
    end = os.lseek(descriptor, 0, os.SEEK_END) // ALIGNMENT_BYTES * ALIGNMENT_BYTES
    if end == 0:
        raise DeviceFailed(f"the namespace has less than {ALIGNMENT_BYTES} bytes; give the device a larger shard")
    position = done = 0
    with mmap.mmap(-1, min(READ_BYTES, end)) as block:  # starts on a page, as direct reads need it
        yield now(), 0
        while done < size_bytes:
            if (count := os.preadv(descriptor, [memoryview(block)[: end - position]], position)) == 0:
                raise DeviceFailed(f"the namespace ended at {position} of {end} bytes; start the device again")
            position, done = (position + count) % end, done + count
            yield now(), done


def between_waits(marks: Sequence[Mark], held_seconds: float = HELD_SECONDS) -> tuple[int, float]:
    """Return the bytes and seconds from the end of the first wait to the end of the last one.

    A throttle that hands out bytes in slices of time is up to a slice ahead of its rate, and by how much depends on
    where in a slice one looks. From one wait's end to another's one looks at the same point of it, and the slice that
    was free at the beginning is not in it. Where fewer than two reads waited, it is the whole.

    Args:
        marks: (seconds, bytes so far), at least two.
        held_seconds: a read that takes longer than this has waited.
    """
    ends = [later for earlier, later in itertools.pairwise(marks) if later[0] - earlier[0] > held_seconds]
    (start, before), (end, after) = (ends[0], ends[-1]) if len(ends) > 1 else (marks[0], marks[-1])
    return after - before, end - start


def probe_send(task: ProbeSend, throttle: Throttle, interfaces: Path = INTERFACES) -> Probed:
    """Send `task.size_bytes` over a plain TCP connection to the sink at `task.address` (``host:port``).

    The sink reads a length of 8 bytes (big endian) and so many bytes, answers with the length, and so on; that of
    `OWN_SINK` is in this process. With a limit, twice what its token bucket holds goes first in the same stream, and
    the clock starts after it.

    Returns:
        Bytes of all frames that the network card sent, headers included, which are what `tbf` counts; and seconds;
        from when the bucket was spent to the last block that was handed to the socket.

    Raises:
        DeviceFailed: the sink cannot be reached or breaks off, or the limit cannot be set.
    """
    host, _, port = task.address.rpartition(":")
    limit = task.limit_bytes_per_second
    burst_bytes = 2 * bucket_bytes(limit) if limit else 0
    seconds = _TIMEOUT_SECONDS + (burst_bytes + task.size_bytes) / (limit or 1e6)
    own = open_sink() if task.address == OWN_SINK else contextlib.nullcontext(port)
    with throttle.limit_sends(host, limit) if limit else contextlib.nullcontext(), own as port:
        counter = interfaces / throttle.card_towards(host) / "statistics" / "tx_bytes"
        try:
            with _connect(host, int(port), seconds) as sink:
                marks = list(send_marks(sink, burst_bytes + task.size_bytes, counter, time.monotonic))
        except (OSError, ValueError, OverflowError) as error:
            raise DeviceFailed(f"the sink at {task.address} could not be sent to: {error}; open it first") from error
    return Probed(*after_burst(marks, burst_bytes))


@contextlib.contextmanager
def open_sink() -> Iterator[str]:
    """Listen on loopback for what `probe_send` sends, one connection after the other, and yield the port."""
    with socket.create_server((LOOPBACK, 0)) as listening:
        threading.Thread(target=_take, args=(listening,), daemon=True).start()
        try:
            yield str(listening.getsockname()[1])
        finally:
            listening.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closing does not


def _take(listening: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError), connection.makefile("rb") as stream:
                while len(length := stream.read(LENGTH_BYTES)) == LENGTH_BYTES:
                    left = int.from_bytes(length, "big")
                    while left and (block := stream.read(min(left, _SEND_BYTES))):
                        left -= len(block)
                    connection.sendall(length)


def send_marks(sink: socket.socket, size_bytes: int, counter: Path, now: Callable[[], float]) -> Iterator[Mark]:
    """Send so many bytes in blocks and yield (seconds, count in `counter`) at the start and after each block.

    Raises:
        OSError: the sink breaks off, or does not confirm that it has got all.
    """
    length, block = size_bytes.to_bytes(LENGTH_BYTES, "big"), memoryview(bytes(_SEND_BYTES))
    yield now(), int(counter.read_text(encoding="ascii"))
    sink.sendall(length)
    for left in range(size_bytes, 0, -_SEND_BYTES):
        sink.sendall(block[:left])
        yield now(), int(counter.read_text(encoding="ascii"))
    if (answer := sink.recv(LENGTH_BYTES, socket.MSG_WAITALL)) != length:
        raise OSError(f"it answered {answer!r} in place of {length!r}")


def after_burst(marks: Sequence[Mark], burst_bytes: int) -> tuple[int, float]:
    """Return the bytes and seconds from the first mark with `burst_bytes` more than the first one to the last mark.

    A token bucket is full after a rest and lets that much through at once; this is not in it. Where so much was never
    sent, it is the whole.
    """
    spent = (mark for mark in marks[:-1] if mark[1] - marks[0][1] >= burst_bytes)
    (start, before), (end, after) = next(spent, marks[0]), marks[-1]
    return after - before, end - start


def _connect(host: str, port: int, timeout_seconds: float) -> socket.socket:
    """Connect with little room to send ahead: what has left the program has soon left the card, too."""
    sink = socket.create_connection((host, port), timeout_seconds)
    sink.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _AHEAD_BYTES)
    return sink
