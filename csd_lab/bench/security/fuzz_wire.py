"""Fuzzed input for both ends of the wire: frames, sequences of them, hellos, and what drives say when enrolled."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from csd_emu.util.deadline import Deadline
from csd_lab.bench.security.fuzz_loop import FuzzTarget
from csd_lab.bench.security.fuzz_mutation import example_of
from firmware_agent.common import wire
from firmware_agent.common.errors import CsdError, DeviceLost, ProtocolError
from firmware_agent.common.frames.frame_fields import Frame
from firmware_agent.common.frames.measure_frames import ProbeRead, ProbeSend
from firmware_agent.common.frames.session_frames import Disturb, Hello, Job, Sabotage, Slice, Tensors, Trained, Welcome
from firmware_agent.common.identity import Identity
from firmware_agent.common.shard import open_shard, write_shard
from firmware_agent.common.slices import Assembler, cut_slices, tensor_specs
from host.core.states.training_state import TrainingState, pack_state, unpack_state
from host.deploy.compatibility import parse_facts, read_version
from host.fleet.admission import ExpectedDevice, HelloRules
from host.fleet.device_session import DeviceSession
from host.training.multi_server.store.store_client import Request, read_request
from host.training.multi_server.worker.worker_frames import FromHost, FromWorker, from_host, from_worker

_WEIGHTS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(2, np.float32)}
_FACTS = "machine=aarch64\nkernel=6.1.0-31-arm64\nos=Debian 12\ncores=4\nclock_khz=1500000\nmemory_kib=4000000\n"
_FACTS += "libc=glibc 2.36\ninit=systemd 252\npython=/usr/bin/python3 3.11.2 x\nuid=0\ndate=1790000000\nend=yes\n"
# What works for as long as it says, starts processes or runs a model: the host is trusted to ask for that.
_TRUSTED = Job | ProbeRead | ProbeSend | Disturb | Sabotage


def wire_targets(folder: Path) -> list[FuzzTarget]:
    """Return the targets; what they need of files lies below `folder`."""
    frames = [_plain(frame) for frame in _each_of(wire.AnyFrame)]
    exchange = [_plain(frame) for frame in _exchange()]
    hello = example_of(Hello) | {"protocol": wire.PROTOCOL_VERSION, "device": "csd-00", "clock": "wall"}
    session = [exchange, *([*exchange[:place], each, *exchange[place:]] for place in (1, 3) for each in frames)]
    agent = [[_plain(Welcome()), *exchange[:-1], each] for each in frames]
    state = pack_state(TrainingState(1, 0.5, 1.0, dict(_WEIGHTS), {}, {}))
    workers = [_plain(each) for kind in (FromHost, FromWorker) for each in _each_of(kind)]
    return [
        FuzzTarget("frame", "msgpack", [*frames, exchange], wire.unpack, 30.0),
        FuzzTarget("host's session", "msgpack", session, _session, 6.0),
        FuzzTarget("agent's session", "msgpack", agent, _agent(folder / "agent"), 6.0),
        FuzzTarget("hello", "msgpack", [hello], _hello, 6.0),
        FuzzTarget("assembler", "msgpack", [exchange[:-1]], _assemble, 20.0),
        FuzzTarget("servers' frame", "msgpack", workers, _from_servers, 10.0),
        FuzzTarget("store request", "msgpack", [_plain(each) for each in _each_of(Request)], read_request, 10.0),
        FuzzTarget("server's state", "bytes", [state], unpack_state, 6.0),
        FuzzTarget("facts of a drive", "bytes", [_FACTS.encode()], _facts, 6.0),
    ]


def _each_of(union: Any) -> list[Any]:
    """Return an example of each struct of a union."""
    return [_made(kind) for kind in union.__args__]


def _made(kind: Any) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(example_of(kind)), type=kind)


def _plain(frame: Any) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(frame))


def _exchange() -> list[Frame]:
    """Return what a drive sends of a round: tensors, slices, and that it has trained."""
    return [Tensors(1, tensor_specs(_WEIGHTS)), *cut_slices(1, _WEIGHTS, 16), _made(Trained)]


class _Messages:
    """A stream that says what a case says, frame after frame, and takes whatever is sent."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = iter(messages)

    async def read(self) -> Any:
        """Return the next message, None at the end."""
        return next(self._messages, None)

    async def write(self, _: bytes) -> None:
        """Take it."""


def _split(content: bytes) -> list[bytes]:
    """Return the messages of a case, which is one list of frames; a case that is none is one message."""
    try:
        frames = msgspec.msgpack.decode(content, type=list[msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return [content]
    return [bytes(frame) for frame in frames[:64]]


def _session(content: bytes) -> None:
    async def run() -> None:
        session = DeviceSession(_made(Hello), _Messages(_split(content)))
        pump = asyncio.ensure_future(session.pump())
        try:
            await session.receive_tensors(1, tensor_specs(_WEIGHTS), Trained, Deadline(5))
            while True:
                await session.receive(Deadline(5))
        finally:
            pump.cancel()

    asyncio.run(run())


def _assemble(content: bytes) -> None:
    frames = [frame for message in _split(content) for frame in wire.unpack(message)]
    announced = next((frame for frame in frames if isinstance(frame, Tensors)), None)
    if announced is None:
        raise ProtocolError("nothing announced")
    assembler = Assembler(announced.exchange, announced.specs, tensor_specs(_WEIGHTS))
    for frame in frames:
        if isinstance(frame, Slice):
            assembler.add(frame)
    assembler.arrays()


def _hello(content: bytes) -> None:
    rules = HelloRules({"csd-00": ExpectedDevice(1, "0" * 64, samples=1), "real": ExpectedDevice(1, "")})
    for device in ("csd-00", "real", "stranger"):
        frame = wire.decode(content)
        if not isinstance(frame, Hello):
            raise ProtocolError("no hello")
        rules.check(device, frame)
        rules.welcome(device, frame)


def _agent(folder: Path) -> Callable[[bytes], None]:
    """Return what has an agent read frames of a host; the agent's modules are no one else's to import."""
    agents = importlib.import_module("firmware_agent.agent")
    disturbances = importlib.import_module("firmware_agent.faults.competing_task")
    folder.mkdir()
    write_shard(folder / "shard.tar", "digits", {"image": np.zeros((4, 1, 8, 8), np.uint8), "label": np.arange(4)})
    shard, identity = open_shard(folder / "shard.tar"), _made(Identity)

    class Watched(agents.Agent):  # type: ignore[misc, name-defined]
        """An agent whose own failures are not hidden by its telling the host of them."""

        def _report_failure(self, session: Any, frame: Any, error: BaseException) -> None:
            if not isinstance(error, CsdError):
                raise error
            super()._report_failure(session, frame, error)

    def call(content: bytes) -> None:
        agent = Watched(identity, shard, disturbances.Disturbance(None))
        agent._serve(_Line(_split(content)))

    return call


class _Line:
    """The session of an agent with a host that says what a case says."""

    def __init__(self, messages: list[bytes]) -> None:
        self._frames = self._read(messages)

    def _read(self, messages: list[bytes]) -> Iterator[wire.AnyFrame]:
        for message in messages:
            yield from (frame for frame in wire.unpack(message) if not isinstance(frame, _TRUSTED))

    def receive(self) -> wire.AnyFrame:
        """Return the next frame; without one the stream has ended."""
        for frame in self._frames:
            return frame
        raise DeviceLost("the case is over")

    def send(self, frame: Frame) -> None:
        """Encode it, as a session does."""
        wire.encode(frame)

    def send_encoded(self, _: bytes) -> None:
        """Take it."""


def _from_servers(content: bytes) -> None:
    for read in (from_host, from_worker):
        try:
            read(content)
        except ProtocolError:
            continue
    raise ProtocolError("read by both")


def _facts(content: bytes) -> None:
    read_version(str(parse_facts("csd-00", content.decode(errors="replace"))))
