"""A virtual machine that counts steps of an array's drives, all of whose records it holds; started when first asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from csd_emu.config.array_file import QEMU, ArrayConfig
from csd_emu.engines import make_engine
from csd_emu.util.config_files import parse_config
from csd_emu.util.deadline import Deadline
from csd_emu.util.node_names import COUNTER, HOST, counter_array
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress, Silent
from firmware_agent.common.errors import CsdError, DeviceLost, EnvironmentUnfit, ProtocolError
from firmware_agent.common.frames.session_frames import Disturb, Disturbed
from host.config.job_file import Partition
from host.core.datasets import Dataset
from host.core.interrupts import end_tasks
from host.core.records import EventKind, OnEvent
from host.fleet.array_state import array_folder
from host.fleet.device_session import DeviceSession
from host.fleet.lifecycle import ArrayRequest, clear_array, start_array
from host.fleet.shards import deal_out

T = TypeVar("T")
Indices = npt.NDArray[np.int64]

# How often a machine is started in a row for one piece of work.
_STARTS = 3


class SamplerMachine:
    """One virtual machine; an async context manager that starts it beside what else is done, and ends it."""

    def __init__(self, array: ArrayRequest, number: int, paths: Paths, progress: Progress, on_event: OnEvent) -> None:
        """Make image and template, if they are not there; nothing is started yet.

        Args:
            array: whose drives' steps it counts.
            number: of the machine.
            paths: csd-emu's folders.
            progress: shown what is made.
            on_event: told of machines that end.

        Raises:
            EnvironmentUnfit: QEMU or libvirt is missing.
        """
        self._request = _request_of(array, number)
        self._paths, self._on_event = paths, on_event
        self._box = contextlib.AsyncExitStack()
        self._turn = asyncio.Lock()
        self._session: DeviceSession | None = None
        self._weight = 0
        # What is under way: the start, and what the machine is asked for.
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        try:
            with contextlib.closing(make_engine(self._request.config, paths)) as engine:
                engine.prepare(progress)
        except EnvironmentUnfit as error:
            raise EnvironmentUnfit(
                f"clock: sampled counts steps on a virtual machine, and that is not possible here: {error}; without "
                "one clock: modelled is what is left"
            ) from error
        progress.stage("")

    async def __aenter__(self) -> SamplerMachine:
        self._begin(self._start_early())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        await end_tasks(self._tasks)
        await self._box.aclose()

    def place_records(self, dataset: Dataset) -> Indices:
        """Return, int64, where in its shard each training record of the data set lies."""
        dealt = deal_out(dataset, self._request.data, self._request.config.list_nodes(), self._request.seed).private[0]
        return np.argsort(dealt)

    async def work(self, work: Callable[[DeviceSession], Awaitable[T]]) -> T:
        """Return what `work` makes of a session with the machine, with another one if it is lost meanwhile.

        Raises:
            CsdError: it cannot be started, or is lost every time, or the run is over; or as `work`.
        """
        return await self._begin(self._work(work))

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _work(self, work: Callable[[DeviceSession], Awaitable[T]]) -> T:
        async with self._turn:
            for start in range(_STARTS):
                session = await self._ready()
                try:
                    return await work(session)
                except (DeviceLost, ProtocolError) as error:
                    session.close(str(error))
                    if start + 1 == _STARTS:
                        raise
            raise AssertionError("unreachable")

    async def disturb(self, session: DeviceSession, weight: int, deadline: Deadline) -> None:
        """Have a task of this cgroup weight compete in the machine, 0 for none.

        Raises:
            DeviceError: it was lost, or cannot.
        """
        if weight != self._weight:
            await session.send(Disturb(weight), deadline)
            await session.expect(Disturbed, deadline)
            self._weight = weight

    async def _start_early(self) -> None:
        with contextlib.suppress(CsdError):  # whoever wants it to work is told
            async with self._turn:
                await self._ready()

    async def _ready(self) -> DeviceSession:
        if self._closed:
            raise DeviceLost("the virtual machine that counts steps has ended with its run")
        if self._session is not None and self._session.closed:
            told = "the virtual machine that counts steps was lost: what it was at does not count, another is started"
            self._on_event(HOST, EventKind.NOTE, told)
        if self._session is None or self._session.closed:
            await self._box.aclose()
            self._box, self._weight = contextlib.AsyncExitStack(), 0
            self._session = await self._start()
        return self._session

    async def _start(self) -> DeviceSession:
        name, box = self._request.config.name, self._box
        folder = box.enter_context(array_folder(self._paths.arrays, name))
        engine = box.enter_context(contextlib.closing(make_engine(self._request.config, self._paths)))
        await asyncio.to_thread(clear_array, engine, name, folder)
        await asyncio.to_thread(engine.prepare, Silent())
        box.push_async_callback(asyncio.to_thread, clear_array, engine, name, folder)
        started = await start_array(self._request, folder, engine, box, lambda *_: None)
        return started.fleet.sessions()[f"{COUNTER}-00"]


def _request_of(array: ArrayRequest, number: int) -> ArrayRequest:
    """Return the array of one virtual machine that has all records, in one shard."""
    config = array.config
    machine = {
        "name": counter_array(config.name, number),
        "engine": QEMU,
        "hypervisors": config.model_dump(mode="json")["hypervisors"],
        "host": {"address": str(config.host.address)},
        "memory": f"{config.memory:.0f} B",
        "image": config.image.model_dump(),
        "devices": [{"profile": config.list_devices()[0].profile, "name": COUNTER}],
    }
    data = array.data.model_copy(update={"private": 1.0, "partition": Partition()})
    return ArrayRequest(parse_config(machine, ArrayConfig, "samplers"), data, array.seed)
