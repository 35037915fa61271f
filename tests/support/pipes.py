"""Real agents in threads of this process, on the far end of a host's streams: no network, no process, no TLS."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

import torch

from firmware_agent.agent import Agent
from firmware_agent.common.errors import AgentRefused, DeviceLost
from firmware_agent.common.frames.frame_fields import Frame
from firmware_agent.common.frames.session_frames import Hello, Job, Welcome
from firmware_agent.common.identity import Identity
from firmware_agent.common.models import build_model
from firmware_agent.common.shard import Shard
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.slices import Array
from firmware_agent.common.split.cutting import cut_model
from firmware_agent.common.weights import buffer_names, state_arrays, tied_names, trained_names
from firmware_agent.common.wire import AnyFrame, encode, unpack
from firmware_agent.faults.competing_task import Disturbance
from firmware_agent.host_session import HostSession, Outbox
from host.core.evaluation import NormSum, Structure, trace_norm_sums
from host.core.learning.judgement import Judgement
from host.fleet.device_session import DeviceSession
from tests.support.fakes import FakeEvaluator, hello

SHAPE = (1, 8, 8)
Tamper = Callable[[AnyFrame], list[AnyFrame]]
"""Makes what arrives of what was sent."""


def honest(frame: AnyFrame) -> list[AnyFrame]:
    return [frame]


class PipeSession:
    """A `firmware_agent.host_session.HostSession` to a host in this process."""

    def __init__(self, deliver: Callable[[bytes | None], None]) -> None:
        self.outbox = Outbox(4)
        self._deliver = deliver
        self._inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._frames: deque[AnyFrame] = deque([Welcome()])
        self._ended = threading.Event()
        self.why = ""
        self._feeder = threading.Thread(target=self._feed, daemon=True)
        self._feeder.start()

    def take(self, message: bytes | None) -> None:
        """Take a message of the host's; None ends the stream."""
        self._inbox.put(message)

    def send(self, frame: Frame) -> None:
        self.send_encoded(encode(frame))

    def send_encoded(self, data: bytes) -> None:
        while not self.outbox.put(data, 1.0):
            if self._ended.is_set():
                raise DeviceLost(self.why)

    def receive(self) -> AnyFrame:
        while not self._frames:
            message = self._inbox.get()
            if message is None or self._ended.is_set():
                raise DeviceLost(self.why or "the host closed the stream")
            self._frames.extend(unpack(message))
        return self._frames.popleft()

    def cancel(self, why: str = "") -> None:
        self.why = self.why or why
        self._ended.set()
        self._inbox.put(None)
        self._deliver(None)

    def __enter__(self) -> PipeSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
        self.outbox.close()
        self._feeder.join()

    def _feed(self) -> None:
        for message in self.outbox:
            self._deliver(message)


class PipeDrive:
    """An agent in a thread, as `tests.support.fakes.FakeFleet` takes a drive; it dials once."""

    def __init__(
        self, device: str, shard: Shard, to_drive: Tamper = honest, to_host: Tamper = honest, clock: str = "wall"
    ) -> None:
        self.device, self._to_drive, self._to_host = device, to_drive, to_host
        self._loop = asyncio.get_running_loop()
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.session = DeviceSession(hello(device, clock=clock), self)
        self.far = PipeSession(self._deliver)
        self._pump: asyncio.Task[None] | None = None
        identity = Identity("lab", device, 1, "127.0.0.1:1", "wall", 0.0, b"e" * 64, "", "", "")
        agent = Agent(identity, shard, Disturbance(None))
        self.thread = threading.Thread(target=self._serve, args=(agent,), daemon=True)
        self.thread.start()

    def pump(self) -> None:
        self._pump = asyncio.ensure_future(self.session.pump())

    async def read(self) -> bytes | None:
        return await self._messages.get()

    async def write(self, message: bytes) -> None:
        for frame in unpack(message):
            for each in self._to_drive(frame):
                self.far.take(encode(each))

    def end(self) -> None:
        """End the stream and wait for the agent."""
        self.far.cancel("the test ends")
        self.thread.join()

    def _serve(self, agent: Agent) -> None:
        dials = iter([cast(HostSession, self.far)])

        def dial(_: Identity) -> HostSession:
            session = next(dials, None)
            if session is None:
                raise AgentRefused("it dials once")
            return session

        with contextlib.suppress(AgentRefused):
            agent.serve_forever(threading.Event(), dial)

    def _deliver(self, message: bytes | None) -> None:
        if message is None:
            self._loop.call_soon_threadsafe(self._messages.put_nowait, None)
            return
        for frame in unpack(message):
            for each in [] if isinstance(frame, Hello) else self._to_host(frame):
                self._loop.call_soon_threadsafe(self._messages.put_nowait, encode(each))


class ModelEvaluator(FakeEvaluator):
    """Starts from a model's own weights."""

    def __init__(self, job: Job, order: tuple[str, ...] = ()) -> None:
        super().__init__()
        torch.manual_seed(job.seed)
        self._model, self._order = build_model(ShippedCode(job.model, job.source, job.arguments)), order

    def initial_weights(self) -> dict[str, Array]:
        return {name: array.copy() for name, array in state_arrays(self._model).items()}

    def structure(self) -> Structure:
        model = self._model
        return Structure(tuple(trained_names(model)), tuple(buffer_names(model)), tied_names(model), self._order)

    def norm_sums(self, frame: Job) -> Sequence[NormSum]:
        model, image = copy.deepcopy(self._model).train(), torch.zeros(1, *SHAPE)
        image = image.to(next(model.parameters()).dtype)
        return trace_norm_sums(model if frame.cut is None else cut_model(model, image, frame.cut).front, image)

    def evaluate(self, weights: object) -> Judgement:
        return Judgement(0.0, 0.0)
