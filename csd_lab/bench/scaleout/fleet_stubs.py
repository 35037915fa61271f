"""Stub agents, many in one process: the real wire and TLS, each with its own certificate, and nothing computed."""

from __future__ import annotations

import argparse
import asyncio
import functools
import platform
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio
import msgspec

from csd_emu.util.open_files import allow_open_files
from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.session_frames import Hello, Job, Ready, Slice, Tensors, Train, Trained, Welcome
from firmware_agent.common.wire import HOST_NAME, PROTOCOL_VERSION, SERVICE_METHOD, decode, encode, pack, unpack
from host.core.device_time import COUNTED
from host.core.rare_collections import rare_collections

# The shard that every stub says it has.
MANIFEST = "a" * 64
KEYS_FOLDER, HOST_FILE = "keys", "host.json"

T = TypeVar("T")


class HostTask(msgspec.Struct, frozen=True):
    """What the host process shall do.

    Attributes:
        port: on which it listens, of loopback.
        devices: names of the drives.
        elements: float32 of the one tensor that crosses.
        rounds: that are measured.
        seed: of the tensor.
        deadline_seconds: wall time in which all of it must be done.
    """

    port: int
    devices: list[str]
    elements: int
    rounds: int
    seed: int
    deadline_seconds: float


class HostReport(msgspec.Struct, frozen=True):
    """What the host process saw; wall and processor seconds, bytes of resident memory.

    Attributes:
        joined_seconds: from listening to the last drive's hello.
        round_seconds: of each round.
        processor_seconds: of this process, per round.
        before_bytes: before it listened: interpreter and libraries.
        joined_bytes: with all sessions there, before the first round.
        after_bytes: after the last round.
        peak_bytes: the most at any time.
    """

    joined_seconds: float
    round_seconds: list[float]
    processor_seconds: float
    before_bytes: int
    joined_bytes: int
    after_bytes: int
    peak_bytes: int


class Credentials(msgspec.Struct, frozen=True):
    """A stub's name, certificate and key."""

    device: str
    certificate_pem: str
    key_pem: str


class StubTask(msgspec.Struct, frozen=True):
    """Names of the stubs in one process, and the address that they dial."""

    port: int
    ca_pem: str
    stubs: list[Credentials]


def write_task(path: Path, task: HostTask | StubTask) -> None:
    """Write a task for its process; keys are in it."""
    path.touch(mode=0o600)
    path.write_bytes(msgspec.json.encode(task))


def read_task(path: Path, kind: type[T]) -> T:
    """Read what `write_task` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=kind)


LOOPBACK = "127.0.0.1"
# As a drive's own (firmware_agent.host_session), but for pings: stubs must not be what the host is busy with.
_OPTIONS = [
    ("grpc.ssl_target_name_override", HOST_NAME),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
]
# TLS handshakes that one process has under way: more at once would only be given up and begun again.
_HANDSHAKES = 32
_READY = encode(Ready(1))


def hello_of(device: str, number: int) -> Hello:
    """Return what a stub says of itself."""
    facts = {
        "agent": metadata.version("csd-emu"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "kernel": platform.release(),
    }
    return Hello(PROTOCOL_VERSION, device, 1, COUNTED, MANIFEST, 1, facts, f"{number:016x}")


# All stubs get the same bytes and give the same: they are taken apart, and put together, once.
@functools.lru_cache(maxsize=64)
def ends_task(message: bytes) -> bool:
    """Return whether whoever got this message owes an answer."""
    return any(isinstance(frame, Job | Train) for frame in unpack(message))


@functools.lru_cache(maxsize=4)
def answer(messages: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return what a drive sends back that trains for no epoch: the weights as they came, or that it is ready.

    Raises:
        ProtocolError: it is neither a job nor a round without an epoch.
    """
    frames = [frame for message in messages for frame in unpack(message)]
    task = frames[-1]
    if isinstance(task, Job):
        return (_READY,)
    if not isinstance(task, Train) or task.epochs:
        raise ProtocolError(f"a stub agent was sent a {type(task).__name__}, and cannot train")
    back = [encode(frame) for frame in frames if isinstance(frame, Tensors | Slice)]
    return tuple(pack([*back, encode(Trained(task.round, 0, 0, 0.0, PhaseSeconds(), 0))]))


async def serve(task: StubTask) -> None:
    """Be all the stubs of a task until the host ends their streams."""
    turns = asyncio.Semaphore(_HANDSHAKES)
    await asyncio.gather(*(_serve_one(task, stub, number, turns) for number, stub in enumerate(task.stubs)))


async def _serve_one(task: StubTask, stub: Credentials, number: int, turns: asyncio.Semaphore) -> None:
    keys = [text.encode() for text in (task.ca_pem, stub.key_pem, stub.certificate_pem)]
    credentials = grpc.ssl_channel_credentials(*keys)
    async with grpc.aio.secure_channel(f"{LOOPBACK}:{task.port}", credentials, options=_OPTIONS) as channel:
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(SERVICE_METHOD)
        async with turns:
            call = method(wait_for_ready=True)
            await call.write(encode(hello_of(stub.device, number)))
            message = await call.read()
        if not isinstance(message, bytes) or not isinstance(decode(message), Welcome):
            raise ProtocolError(f"{stub.device}: the host answered a hello with something other than a welcome")
        waiting: list[bytes] = []
        try:
            while isinstance(message := await call.read(), bytes):
                waiting.append(message)
                if ends_task(message):
                    for data in answer(tuple(waiting)):
                        await call.write(data)
                    waiting = []
        except grpc.aio.AioRpcError as error:  # so the host ends its streams
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                raise


def main() -> None:
    """Be the stubs that the command line's file names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", type=Path)
    task = read_task(parser.parse_args().task, StubTask)
    allow_open_files(len(task.stubs))
    with rare_collections():
        asyncio.run(serve(task))


if __name__ == "__main__":
    main()
