"""Federated rounds: weights out, local training in the drives, weights back, a weighted mean."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from csd_emu.deadline import Deadline
from firmware_agent.errors import CsdError, DeviceFailed, DeviceLost, ProtocolError
from firmware_agent.exchange import Array, cut_slices, tensor_specs
from firmware_agent.models import ModelSpec
from firmware_agent.wire import Job, Ready, Tensors, Train, Trained, encode
from host.accounting import Accountant, Accounted, Returned
from host.aggregate import weighted_mean
from host.evaluation import Evaluator
from host.fleet import Fleet
from host.job import JobConfig
from host.records import DeviceRound, OnEvent, RoundRecord, What
from host.session import DeviceSession


@dataclass(frozen=True)
class Contribution:
    """What one device returned from a round."""

    weights: dict[str, Array]
    returned: Returned


def job_frame(job: JobConfig, spec: ModelSpec, image_scale: float) -> Job:
    """Return the frame that tells a drive what it will train."""
    return Job(
        model=spec.name,
        arguments=dict(spec.arguments),
        source=spec.source,
        image_scale=image_scale,
        seed=job.seed,
        learning_rate=job.learning_rate,
        momentum=job.momentum,
        batch_size=job.batch_size,
    )


BeforeTask = Callable[[DeviceSession, Deadline], Awaitable[None]]
"""May speak with a device before it gets its next task; raises `DeviceError` if that device is lost."""


async def leave_alone(session: DeviceSession, deadline: Deadline) -> None:
    """Say nothing to a device before its task."""


async def prepare_device(session: DeviceSession, frame: Job, deadline: Deadline) -> Ready:
    """Have the device build the job's model.

    Raises:
        DeviceError: it was lost, or could not build the model.
    """
    await session.send(frame, deadline)
    return await session.expect(Ready, deadline)


class FederatedTraining:
    """A federated job on the devices of a fleet; one instance per run."""

    def __init__(
        self,
        job: JobConfig,
        frame: Job,
        fleet: Fleet,
        devices: Sequence[str],
        accountant: Accountant,
        evaluator: Evaluator,
        on_round: Callable[[RoundRecord], None],
        on_event: OnEvent,
        before_task: BeforeTask = leave_alone,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            job: what to train.
            frame: the same, as drives get it.
            fleet: the drives that have dialled in.
            devices: names of all drives of the array, in order.
            accountant: composes time and energy of the rounds.
            evaluator: builds the first weights and judges the others.
            on_round: called with the record of every round.
            on_event: called with device, what happened, and more about it.
            before_task: called for each device before a round's frames go to it.
        """
        self._job, self._frame, self._fleet, self._evaluator = job, frame, fleet, evaluator
        self._on_round, self._on_event, self._before_task = on_round, on_event, before_task
        self._devices, self._accountant = list(devices), accountant
        self._prepared: set[DeviceSession] = set()
        self.weights = evaluator.initial_weights()
        self._specs = tensor_specs(self.weights)

    async def run(self) -> list[RoundRecord]:
        """Train until the target is reached or the rounds are done; return all rounds.

        Raises:
            DeviceLost: no device is left.
            DeviceFailed: no device returned its weights, and one said why.
        """
        rounds: list[RoundRecord] = []
        for number in range(1, self._job.rounds + 1):
            record = await self._round(number)
            self._on_round(record)
            rounds.append(record)
            if self._job.target is not None and record.accuracy >= self._job.target.accuracy:
                break
        return rounds

    async def _round(self, number: int) -> RoundRecord:
        begin = time.monotonic()
        frames = self._encode_weights(number)
        sessions = list(self._fleet.sessions().values())
        results = await asyncio.gather(*(self._visit(session, number, frames) for session in sessions))
        done = [result for result in results if isinstance(result, Contribution)]
        if not done:
            failed = next((result for result in results if isinstance(result, DeviceFailed)), None)
            raise failed or DeviceLost(
                f"round {number}: no device returned its weights; csd-emu status shows what is left"
            )
        self.weights = weighted_mean([(part.returned.trained.samples, part.weights) for part in done])
        accuracy, loss = await asyncio.to_thread(self._evaluator.evaluate, self.weights)
        start_seconds = self._accountant.array_seconds
        accounted = self._accountant.account([part.returned for part in done])
        return RoundRecord(
            round=number,
            accuracy=accuracy,
            test_loss=loss,
            start_seconds=start_seconds,
            wall_seconds=time.monotonic() - begin,
            lost=self._missing(accounted),
            array_seconds=accounted.array_seconds,
            devices=accounted.devices,
            spans=accounted.spans,
            energy_joules=accounted.energy_joules,
            **_totals(accounted.devices),
        )

    def _missing(self, accounted: Accounted) -> list[str]:
        returned = {part.device for part in accounted.devices}
        return [device for device in self._devices if device not in returned]

    def _encode_weights(self, number: int) -> list[bytes]:
        """Return the frames that carry this round's weights, encoded once for all devices."""
        pieces = cut_slices(number, self.weights)
        train = Train(number, self._job.epochs)
        return [encode(frame) for frame in (Tensors(number, self._specs), *pieces, train)]

    async def _visit(self, session: DeviceSession, number: int, frames: Sequence[bytes]) -> Contribution | CsdError:
        """Train one round on one device; an error, which is recorded, if the device was lost or its task failed."""
        try:
            return await self._train_device(session, number, frames)
        except DeviceFailed as error:  # the session goes on: the next round is another chance
            self._on_event(session.device, What.FAILED, f"in round {number}: {error}")
            return error
        except (DeviceLost, ProtocolError) as error:
            session.close(str(error))
            self._on_event(session.device, What.LOST, f"in round {number}: {error}")
            return error

    async def _train_device(self, session: DeviceSession, number: int, frames: Sequence[bytes]) -> Contribution:
        if session not in self._prepared:
            await prepare_device(session, self._frame, Deadline(self._job.watchdog))
            self._prepared.add(session)
        await self._before_task(session, Deadline(self._job.watchdog))
        sent, received = session.sent_bytes, session.received_bytes
        for data in frames:
            await session.send_encoded(data, Deadline(self._job.watchdog))
        weights, trained = await session.receive_tensors(number, self._specs, Trained, Deadline(self._job.watchdog))
        job, hello = self._job, session.hello
        returned = Returned(
            device=session.device,
            hello_clock=hello.clock,
            trained=trained,
            epochs=job.epochs,
            batch_size=job.batch_size,
            sent_bytes=session.sent_bytes - sent,
            received_bytes=session.received_bytes - received,
        )
        return Contribution(weights, returned)


def _totals(parts: Sequence[DeviceRound]) -> dict[str, Any]:
    """Return a round's figures over its devices, by the names of `RoundRecord`."""
    samples = sum(part.samples for part in parts)
    seconds = [part.device_seconds.total for part in parts]
    return {
        "clock": "+".join(sorted({part.clock for part in parts})),
        "train_loss": sum(part.loss * part.samples for part in parts) / samples,
        "images_per_device_second": samples / sum(seconds) if any(seconds) else 0.0,
        "slowest_device_seconds": max(seconds),
    }
