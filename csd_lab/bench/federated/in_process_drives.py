"""Drives in this process: the agent's trainer behind the host's own sessions, without network or virtual machine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import cast

from firmware_agent.clock import Stopwatch
from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.frames.session_frames import Hello, Job, Ready, Slice, Tensors, Train, Trained
from firmware_agent.common.shard import Shard, open_shard
from firmware_agent.common.slices import Assembler, tensor_specs
from firmware_agent.common.split.activations import device_number
from firmware_agent.common.weights import load_arrays, state_arrays
from firmware_agent.common.wire import PROTOCOL_VERSION, AnyFrame, encode, pack, unpack
from firmware_agent.training.trainer import Trainer
from host.app.prepare import RunRequest
from host.core.device_time import WALL
from host.fleet.device_session import DeviceSession
from host.fleet.fleet import Fleet
from host.fleet.shards import write_shards


class InProcessDrive:
    """The drive's end of a `host.fleet.device_session.Stream`: it trains while the host writes to it.

    Attributes:
        session: the host's end.
    """

    def __init__(self, device: str, shard: Shard) -> None:
        """Hold a shard that was opened; the drive's name decides the order of its records."""
        samples, digest = shard.manifest.samples, shard.manifest_sha256
        self.session = DeviceSession(Hello(PROTOCOL_VERSION, device, 1, WALL, digest, samples, {}, "0" * 16), self)
        self._shard, self._stopwatch = shard, Stopwatch()
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._trainer: Trainer | None = None
        self._weights: Assembler | None = None

    async def read(self) -> bytes:
        """Return the next message to the host."""
        return await self._outbox.get()

    async def write(self, message: bytes) -> None:
        """Do what the host says.

        Raises:
            ProtocolError: it sent what does not belong there.
        """
        for frame in unpack(message):
            for answer in pack(self._answers(frame)):
                self._outbox.put_nowait(answer)

    def _answers(self, frame: AnyFrame) -> Iterator[bytes]:
        if isinstance(frame, Job):
            self._trainer = Trainer(frame, self._shard, device_number(self.session.device), self._stopwatch)
            yield encode(Ready(sum(parameter.numel() for parameter in self._trainer.model.parameters())))
        elif isinstance(frame, Tensors) and self._trainer is not None:
            expected = tensor_specs(state_arrays(self._trainer.model))
            self._weights = Assembler(frame.exchange, frame.specs, expected)
        elif isinstance(frame, Slice) and self._weights is not None:
            self._weights.add(frame)
        elif isinstance(frame, Train) and self._trainer is not None and self._weights is not None:
            load_arrays(self._trainer.model, self._weights.arrays())
            yield from self._train(self._trainer, frame)
        else:
            what = f"the host sent a {type(frame).__name__} before a job or weights"
            raise ProtocolError(f"{self.session.device}: {what}")

    def _train(self, trainer: Trainer, task: Train) -> Iterator[bytes]:
        self._stopwatch.take()
        done = trainer.train(task)
        yield from trainer.encode(task.round)
        seconds = self._stopwatch.take()
        yield encode(Trained(task.round, done.samples, done.steps, done.loss, seconds, done.read_bytes))


class InProcessFleet:
    """The part of `host.fleet.fleet.Fleet` that a federated round needs: who has a live session, in order.

    Attributes:
        newcomer: is never set, for nobody dials.
    """

    def __init__(self, drives: Sequence[InProcessDrive]) -> None:
        """Hold drives that are there from the beginning to the end."""
        self.newcomer = asyncio.Event()
        self._sessions = {drive.session.device: drive.session for drive in drives}

    def sessions(self) -> dict[str, DeviceSession]:
        """Return device -> session, of those that are open."""
        return {device: session for device, session in self._sessions.items() if not session.closed}


@contextlib.asynccontextmanager
async def in_process_fleet(request: RunRequest, folder: Path) -> AsyncIterator[Fleet]:
    """Have the drives of a federated run, with their shards in `folder`, for the time of the block."""
    array, devices = request.array, request.config.list_devices()
    records = write_shards(devices, array.data, array.seed, folder, request.dataset)
    drives = [
        InProcessDrive(device.name, open_shard(record.path)) for device, record in zip(devices, records, strict=True)
    ]
    pumps = [asyncio.create_task(drive.session.pump()) for drive in drives]
    try:
        yield cast(Fleet, InProcessFleet(drives))
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
