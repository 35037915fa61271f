"""One step's exchange with the devices: weights and record numbers out, gradients back."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from csd_emu.deadline import Deadline
from firmware_agent.errors import CsdError, DeviceFailed, DeviceLost, ProtocolError
from firmware_agent.exchange import Array, Assembler, cut_slices, tensor_specs
from firmware_agent.wire import (
    Job,
    Reduce,
    Reduced,
    Slice,
    Step,
    Stepped,
    Tensors,
    encode,
    pack,
)
from host.device_time import MODELLED
from host.records import OnEvent, What
from host.rounds import prepare_device
from host.session import DeviceSession
from host.sync.gathering import Gathering
from host.sync.reduce_exchange import Reductions

Records = npt.NDArray[np.uint32]


BeforeStep = Callable[[DeviceSession, int, Deadline], Awaitable[None]]
"""May speak with a device before its part of this step; raises `DeviceError` if that device is lost."""
ClockOf = Callable[[str, str], str]
"""Returns the clock of a device's seconds, given its name and what its stopwatch shows."""


@dataclass(frozen=True)
class Work:
    """What one device does in a step.

    Attributes:
        session: of the device.
        records: indices into its shard.
        micro_batch: at most so many of them at a time.
    """

    session: DeviceSession
    records: Records
    micro_batch: int


@dataclass(frozen=True)
class Outcome:
    """What came of one device's step: its report, or the error that took its place; bytes as they crossed the wire."""

    work: Work
    stepped: Stepped | None
    error: CsdError | None
    sent_bytes: int = 0
    received_bytes: int = 0

    @property
    def device(self) -> str:
        """Name of the device."""
        return self.work.session.device


class StepExchange:
    """Exchanges weights and gradients with devices, step by step; one instance per run."""

    def __init__(
        self,
        frame: Job,
        watchdog_seconds: float,
        on_event: OnEvent,
        before_step: BeforeStep,
        clock_of: ClockOf = lambda _, stopwatch: stopwatch,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            frame: the job as devices get it.
            watchdog_seconds: wall time after which a silent device counts as dead.
            on_event: called with device, what happened, and more about it.
            before_step: called for each device before a step's frames go to it.
            clock_of: see `host.device_time.DeviceTime.clock`.
        """
        self._frame, self._watchdog_seconds = frame, watchdog_seconds
        self._on_event, self._before_step, self._clock_of = on_event, before_step, clock_of
        self._prepared: weakref.WeakSet[DeviceSession] = weakref.WeakSet()
        self._spare: weakref.WeakKeyDictionary[DeviceSession, dict[str, Array]] = weakref.WeakKeyDictionary()

    async def visit(
        self,
        number: int,
        weights: Mapping[str, Array],
        works: Sequence[Work],
        gathering: Gathering,
        probes: Sequence[Work] = (),
    ) -> list[Outcome]:
        """Have all devices compute their part of a step; their gradients come together in `gathering`.

        Args:
            number: of the step, from 1.
            weights: parameters and buffers that the gradients are taken at.
            works: one per device that takes part, in participant order.
            gathering: of this step, for these devices.
            probes: of further devices, whose gradients are dropped.

        Returns:
            What came of each work, then of each probe, in order; `gathering` knows of a device that was lost or failed.
        """
        frames = list(
            pack(encode(frame) for frame in (Tensors(number, tensor_specs(weights)), *cut_slices(number, weights)))
        )
        reductions = Reductions([work.session.device for work in works])
        tasks = [self._visit(number, frames, work, gathering, reductions) for work in works]
        for work in probes:
            device = work.session.device
            alone = Gathering(gathering.specs, {device: len(work.records)}, lambda *_: None, barrier=True)
            tasks.append(self._visit(number, frames, work, alone, Reductions([device])))
        return list(await asyncio.gather(*tasks))

    async def _visit(
        self, number: int, frames: Sequence[bytes], work: Work, gathering: Gathering, reductions: Reductions
    ) -> Outcome:
        session = work.session
        try:
            return await self._step_device(number, frames, work, gathering, reductions)
        except DeviceFailed as error:  # the session goes on: the next step is another chance
            self._on_event(session.device, What.FAILED, f"in step {number}: {error}")
            failure: CsdError = error
        except (DeviceLost, ProtocolError) as error:
            session.close(str(error))
            self._on_event(session.device, What.LOST, f"in step {number}: {error}")
            failure = error
        reductions.leave(session.device)
        await gathering.lose(session.device)
        return Outcome(work, None, failure)

    async def _step_device(
        self, number: int, frames: Sequence[bytes], work: Work, gathering: Gathering, reductions: Reductions
    ) -> Outcome:
        session = work.session
        if session not in self._prepared:
            await prepare_device(session, self._frame, self._deadline())
            self._prepared.add(session)
        await self._before_step(session, number, self._deadline())
        sent, received = session.sent_bytes, session.received_bytes
        for data in frames:
            await session.send_encoded(data, self._deadline())
        records = work.records.astype("<u4").tobytes()
        await session.send(Step(number, records, work.micro_batch), self._deadline())
        stepped = await self._receive(number, session, gathering, reductions)
        return Outcome(work, stepped, None, session.sent_bytes - sent, session.received_bytes - received)

    async def _receive(
        self, number: int, session: DeviceSession, gathering: Gathering, reductions: Reductions
    ) -> Stepped:
        """Take what a device sends in a step, up to its report.

        Raises:
            DeviceError: it was lost, or failed.
            ProtocolError: it sent something that does not belong there, such as a tensor that no gradient has.
        """
        assembler: Assembler | None = None
        while True:
            frame = await session.receive(self._deadline())
            if isinstance(frame, Slice) and assembler is not None:
                assembler.add(frame)
                if assembler.has(frame.tensor):
                    await gathering.sent(session.device, frame.tensor)
            elif isinstance(frame, Tensors) and assembler is None:
                assembler = Assembler(number, frame.specs, gathering.specs, self._spare.pop(session, None))
                gathering.open(session.device, assembler)
                for spec in gathering.specs:  # one without a byte has no slice
                    if assembler.has(spec.name):
                        await gathering.sent(session.device, spec.name)
            elif isinstance(frame, Reduce) and frame.step == number:
                summed = await reductions.add(session.device, frame)
                await session.send(Reduced(number, frame.index, summed), self._deadline())
            elif isinstance(frame, Stepped) and frame.step == number and assembler is not None:
                self._spare[session] = assembler.arrays()
                self._check_seconds(session, frame)
                return frame
            else:
                raise ProtocolError(
                    f"{session.device} sent {type(frame).__name__}, which has no place in step {number}"
                )

    def _check_seconds(self, session: DeviceSession, stepped: Stepped) -> None:
        """Refuse a speed without end: batches are chosen by speed. Modelled seconds are not the device's to say.

        Raises:
            DeviceFailed: the device says that its part took no time.
        """
        if stepped.seconds.total > 0 or self._clock_of(session.device, session.hello.clock) == MODELLED:
            return
        raise DeviceFailed(
            f"{session.device}: says that its {stepped.samples} records of step {stepped.step} took 0 s; its "
            f"{session.hello.clock} clock stands still, so restart it"
        )

    def _deadline(self) -> Deadline:
        return Deadline(self._watchdog_seconds)
