"""Stateful stand-ins, each for one interface: a drive on the far end of a `Stream`, a fleet of them, an evaluator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from csd_emu.config.array_file import Device
from csd_emu.engines import DevicePlan, Fault, Handle, Surroundings
from csd_emu.engines.engine_protocol import ENGINE_FAULTS
from csd_emu.util.deadline import Deadline
from csd_emu.util.progress import Progress
from firmware_agent.common.errors import DeviceError
from firmware_agent.common.frames.frame_fields import Frame, PhaseSeconds
from firmware_agent.common.frames.measure_frames import Measure, Measured
from firmware_agent.common.frames.session_frames import Hello, Job, Ready, Slice, Tensors, Train, Trained
from firmware_agent.common.shard import Shard, open_shard, write_shard
from firmware_agent.common.slices import Array, Assembler, cut_slices, tensor_specs
from firmware_agent.common.wire import PROTOCOL_VERSION, AnyFrame, decode, encode, unpack
from firmware_agent.faults.io_limits import Throttle
from host.core.evaluation import NormSum, Structure
from host.core.learning.judgement import Judgement
from host.fleet.device_session import DeviceSession

SECONDS = PhaseSeconds(forward=1.0, backward=2.0, update=0.5, encode=0.25)
JOB = Job("digits_cnn", {}, None, 1 / 16, 0, 0.05, 0.9, 32)

FACTS = {"agent": "0.1.0", "python": "3.11.2", "torch": "2.9.1", "numpy": "2.3.5", "kernel": "6.1.0"}

Answer = Frame | bytes


def random_shard(folder: Path, samples: int) -> Shard:
    """Write a shard of noise, labelled at random, of the digits' shape."""
    path, generator = folder / "shard.tar", np.random.default_rng(0)
    images = generator.integers(0, 17, (samples, 1, 8, 8)).astype(np.uint8)
    write_shard(path, "random", {"image": images, "label": generator.integers(0, 10, samples)})
    return open_shard(path)


class Cut(Exception):
    """Raised by a fake drive: the stream ends here."""


def hello(
    device: str = "csd-00",
    incarnation: int = 1,
    clock: str = "wall",
    manifest: str = "a" * 64,
    instance: str = "0" * 16,
    samples: int = 10,
) -> Hello:
    return Hello(PROTOCOL_VERSION, device, incarnation, clock, manifest, samples, FACTS, instance)


class FakeDrive:
    """The drive's side of a `host.fleet.device_session.Stream`: training adds `step` to every weight.

    Override one of the methods that yield frames to make it misbehave; raise `Cut` in it to end the stream.
    """

    def __init__(self, device: str = "csd-00", samples: int = 10, step: float = 1.0, clock: str = "wall") -> None:
        self.device, self.samples, self.step, self.batch_size = device, samples, step, 32
        self.session = DeviceSession(hello(device, clock=clock, samples=samples), self)
        self.frames: list[AnyFrame] = []
        self.written: list[bytes] = []
        self.sent: list[bytes] = []
        self._outbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._inbound: Assembler | None = None
        self._pump: asyncio.Task[None] | None = None

    async def read(self) -> bytes | None:
        if (data := await self._outbox.get()) is not None:
            self.sent.append(data)
        return data

    async def write(self, message: bytes) -> None:
        self.written.append(message)
        try:
            for frame in unpack(message):
                self.frames.append(frame)
                for answer in self.answer(frame):
                    await self._outbox.put(answer if isinstance(answer, bytes) else encode(answer))
        except Cut:
            await self._outbox.put(None)

    def pump(self) -> None:
        """Begin to hand frames to the session, as the fleet does."""
        self._pump = asyncio.ensure_future(self.session.pump())

    def answer(self, frame: AnyFrame) -> Iterator[Answer]:
        if isinstance(frame, Job):
            yield from self.prepare(frame)
        elif isinstance(frame, Tensors):
            self._inbound = Assembler(frame.exchange, frame.specs)
        elif isinstance(frame, Slice):
            self.inbound.add(frame)
        elif isinstance(frame, Train):
            yield from self.train(frame, self.inbound.arrays())
        elif isinstance(frame, Measure):
            yield from self.measure(frame)

    def prepare(self, job: Job) -> Iterator[Answer]:
        self.batch_size = job.batch_size
        yield Ready(5)

    def train(self, task: Train, weights: Mapping[str, Array]) -> Iterator[Answer]:
        arrays = {name: array + np.asarray(self.step, array.dtype) for name, array in weights.items()}
        yield from self.tensors(task.round, arrays)
        yield self.trained(task)

    def measure(self, task: Measure) -> Iterator[Answer]:
        """Take one second and one per sample for a step, of which a fifth is forward."""
        seconds = 1.0 + task.batch_size
        step = PhaseSeconds(forward=seconds / 5, backward=seconds * 3 / 5, update=seconds / 5)
        steps = max(1, min(task.steps or 1, int(task.device_seconds / seconds)))
        total = PhaseSeconds(*(steps * getattr(step, phase) for phase in PhaseSeconds.__struct_fields__))
        samples = steps * task.batch_size
        yield Measured(samples, steps, total, total.total, [step] * steps, 0.25, 10**8 + samples, "VmHWM")

    def tensors(self, exchange: int, arrays: Mapping[str, Array]) -> Iterator[Answer]:
        yield Tensors(exchange, tensor_specs(arrays))
        yield from cut_slices(exchange, arrays)

    def trained(self, task: Train, seconds: PhaseSeconds = SECONDS) -> Trained:
        steps = -(-self.samples // self.batch_size) * task.epochs
        return Trained(task.round, self.samples * task.epochs, steps, 0.5, seconds, 640)

    @property
    def inbound(self) -> Assembler:
        if self._inbound is None:
            raise AssertionError("the host sent slices or a task before announcing tensors")
        return self._inbound


class FakeFleet:
    """The part of `host.fleet.fleet.Fleet` that training needs: who has a live session, in order."""

    def __init__(self, *drives: FakeDrive) -> None:
        self.drives = list(drives)
        self.newcomer = asyncio.Event()

    def join(self, drive: FakeDrive) -> None:
        """Dial in, in place of an earlier session of the same device."""
        names = [other.device for other in self.drives]
        if drive.device in names:
            self.drives[names.index(drive.device)] = drive
        else:
            self.drives.append(drive)
        before, self.newcomer = self.newcomer, asyncio.Event()
        before.set()

    def sessions(self) -> dict[str, DeviceSession]:
        for drive in self.drives:
            if drive._pump is None:
                drive.pump()
        return {drive.device: drive.session for drive in self.drives if not drive.session.closed}


class FakeEvaluator:
    """Starts at zero; the accuracy of weights is what `accuracy` makes of the first one."""

    def __init__(self, accuracy: Callable[[float], float] = lambda weight: 0.0, dtype: str = "float32") -> None:
        self._accuracy, self._dtype = accuracy, dtype
        self.sums: list[NormSum] = []
        self.seen: list[dict[str, Array]] = []

    def initial_weights(self) -> dict[str, Array]:
        return {"w": np.zeros((2, 3), self._dtype), "b": np.zeros(3, self._dtype), "n": np.zeros((), np.int64)}

    def structure(self) -> Structure:
        return Structure(("w", "b"), ("n",), {})

    def norm_sums(self, frame: Job) -> Sequence[NormSum]:
        return self.sums

    def evaluate(self, weights: Mapping[str, Array]) -> Judgement:
        self.seen.append({name: array.copy() for name, array in weights.items()})
        return Judgement(self._accuracy(float(weights["w"].flat[0])), 0.25)


class Aborted(Exception):
    """What ends a call that the fleet refuses, as in gRPC."""


class FakeCall:
    """gRPC's servicer context of one call, as far as the fleet uses it."""

    def __init__(self, name: str, *messages: Frame | bytes) -> None:
        self._name = name
        self._inbox: asyncio.Queue[bytes] = asyncio.Queue()
        for message in messages:
            self._inbox.put_nowait(message if isinstance(message, bytes) else encode(message))
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.written: list[AnyFrame] = []
        self.refusal = ""

    def auth_context(self) -> Mapping[str, list[bytes]]:
        return {"x509_common_name": [self._name.encode()]} if self._name else {}

    async def read(self) -> bytes:
        return await self._inbox.get()

    async def write(self, message: bytes) -> None:
        await self.may_write.wait()
        self.written.append(decode(message))

    async def abort(self, code: object, details: str) -> None:
        self.refusal = details
        raise Aborted(details)


FAKE_DISK = Path("/dev/nvme0n1")
_FAKE_TC = """#!/bin/sh
# One card's root queue discipline, kept in a file: "qdisc add dev CARD root KIND..." and "qdisc del dev CARD root".
folder=$(dirname "$0")
echo "$*" >> "$folder/calls"
case "$2" in
add) [ -e "$folder/discipline" ] && { echo "Error: File exists." >&2; exit 2; }
     shift 3; echo "$*" > "$folder/discipline" ;;
del) rm "$folder/discipline" || exit 2 ;;
esac
"""


class FakeThrottled:
    """A drive whose throttles are files: a delegated cgroup, a `tc` that keeps one queue discipline, and a route."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.group: Path | None = folder / "group"
        (folder / "group" / "trainer").mkdir(parents=True)
        for name in ("cgroup.subtree_control", "trainer/io.max"):
            (folder / "group" / name).touch()
        self.tc = folder / "tc"
        self.tc.write_text(_FAKE_TC)
        self.tc.chmod(0o755)
        self._routes = folder / "route"
        self._routes.write_text("Iface Destination\nlo 0000007F 0 1 0 0 0 000000FF\n")

    def throttle(self) -> Throttle:
        """The agent's side of it; its disk is number 259:1."""
        return Throttle(self.group, str(self.tc), self._routes, lambda device: "259:1")

    def lose(self, name: str) -> None:
        """A control file goes: writing to it fails from now on."""
        (self._folder / "group" / name).unlink()
        (self._folder / "group" / name).mkdir()

    @property
    def limited(self) -> bool:
        """Whether a limit is set."""
        return self.discipline is not None or self.read_limit not in ("", "259:1 rbps=max")

    @property
    def read_limit(self) -> str:
        """What was written to `io.max` last."""
        return (self._folder / "group" / "trainer" / "io.max").read_text()

    @property
    def controllers(self) -> str:
        """What was written to the group's list of controllers last."""
        return (self._folder / "group" / "cgroup.subtree_control").read_text()

    @property
    def calls(self) -> list[str]:
        """How `tc` was called."""
        path = self._folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def discipline(self) -> str | None:
        """The card's own queue discipline, if there is one."""
        path = self._folder / "discipline"
        return path.read_text().strip() if path.exists() else None

    @discipline.setter
    def discipline(self, text: str | None) -> None:
        path = self._folder / "discipline"
        if text is None:
            path.unlink(missing_ok=True)
        else:
            path.write_text(text)


class FakeEngine:
    """An engine of devices that are names in a set."""

    def __init__(self, *running: str, faults: frozenset[Fault] = ENGINE_FAULTS) -> None:
        self.running, self.faults = set(running), faults
        self.done: list[str] = []
        self.broken = ""
        self.hypervisor: str | None = None

    def surroundings(self, device: Device) -> Surroundings:
        return Surroundings("wall", "127.0.0.1")

    def hypervisor_of(self, device: Device) -> str | None:
        return self.hypervisor

    def prepare(self, progress: Progress) -> None:
        self.done.append("prepare")

    def start(self, plan: DevicePlan) -> Handle:
        self._do("start", plan)
        self.running.add(plan.device.name)
        return Handle(plan, plan.device.name)

    def find(self, plan: DevicePlan) -> Handle | None:
        return Handle(plan, plan.device.name) if plan.device.name in self.running else None

    def alive(self, handle: Handle) -> bool:
        return handle.reference in self.running

    async def wait_ready(self, handle: Handle, hello: Awaitable[None], deadline: Deadline) -> None:
        await hello

    def inject(self, handle: Handle, fault: Fault) -> None:
        self._do(fault.value, handle.plan)
        if fault is Fault.KILL:
            self.running.remove(handle.reference)

    def stop(self, handle: Handle) -> None:
        self.running.discard(handle.reference)

    def list_devices(self, array: str) -> list[str]:
        return sorted(self.running)

    def list_arrays(self) -> list[str]:
        return ["lab"] if self.running else []

    def sweep(self, array: str) -> list[str]:
        swept, self.running = sorted(self.running), set()
        return swept

    def close(self) -> None:
        self.done.append("close")

    def _do(self, what: str, plan: DevicePlan) -> None:
        if self.broken:
            raise DeviceError(self.broken)
        self.done.append(f"{what} {plan.device.name}")
