"""Federated rounds: weights out, local training in the drives, weights back, a weighted mean."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from csd_emu.deadline import Deadline
from csd_emu.profiles import get_profile
from firmware_agent.errors import CsdError, DeviceFailed, DeviceLost, ProtocolError
from firmware_agent.exchange import Array, cut_slices, tensor_specs
from firmware_agent.models import ModelSpec
from firmware_agent.wire import Job, PhaseSeconds, Ready, Tensors, Train, Trained, encode
from host.aggregate import weighted_mean
from host.array_state import DeviceState
from host.evaluation import Evaluator
from host.fleet import Fleet
from host.job import JobConfig
from host.records import DeviceRound, RoundRecord
from host.session import DeviceSession


@dataclass(frozen=True)
class Contribution:
    """What one device returned from a round."""

    weights: dict[str, Array]
    record: DeviceRound
    clock: str


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
        devices: Sequence[DeviceState],
        evaluator: Evaluator,
        on_round: Callable[[RoundRecord], None],
        on_event: Callable[[str, str], None],
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            job: what to train.
            frame: the same, as drives get it.
            fleet: the drives that have dialled in.
            devices: all drives of the array, in order.
            evaluator: builds the first weights and judges the others.
            on_round: called with the record of every round.
            on_event: called with (device, what happened).
        """
        self._job, self._frame, self._fleet, self._evaluator = job, frame, fleet, evaluator
        self._on_round, self._on_event = on_round, on_event
        self._profiles = {device.name: get_profile(device.profile) for device in devices}
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
        self.weights = weighted_mean([(part.record.samples, part.weights) for part in done])
        accuracy, loss = await asyncio.to_thread(self._evaluator.evaluate, self.weights)
        returned = {part.record.device for part in done}
        lost = [device for device in self._profiles if device not in returned]
        return self._round_record(number, done, lost, accuracy, loss, time.monotonic() - begin)

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
            self._on_event(session.device, f"failed in round {number}: {error}")
            return error
        except (DeviceLost, ProtocolError) as error:
            session.close(str(error))
            self._on_event(session.device, f"lost in round {number}: {error}")
            return error

    async def _train_device(self, session: DeviceSession, number: int, frames: Sequence[bytes]) -> Contribution:
        if session not in self._prepared:
            await prepare_device(session, self._frame, Deadline(self._job.watchdog))
            self._prepared.add(session)
        sent, received = session.sent_bytes, session.received_bytes
        for data in frames:
            await session.send_encoded(data, Deadline(self._job.watchdog))
        weights, trained = await session.receive_tensors(number, self._specs, Trained, Deadline(self._job.watchdog))
        traffic = session.sent_bytes - sent, session.received_bytes - received
        return Contribution(weights, self._device_round(session, trained, traffic), session.hello.clock)

    def _device_round(self, session: DeviceSession, trained: Trained, traffic: tuple[int, int]) -> DeviceRound:
        return DeviceRound(
            device=session.device,
            samples=trained.samples,
            steps=trained.steps,
            loss=trained.loss,
            stopwatch_seconds=trained.seconds,
            device_seconds=self._device_seconds(session, trained.seconds),
            flash_read_bytes=trained.read_bytes,
            sent_bytes=traffic[0],
            received_bytes=traffic[1],
        )

    def _device_seconds(self, session: DeviceSession, seconds: PhaseSeconds) -> PhaseSeconds:
        """Return the profile's seconds: scaled from the counted reference core, else as measured."""
        counted = session.hello.clock == "counted"
        return self._profiles[session.device].device_seconds(seconds) if counted else seconds

    def _round_record(
        self,
        number: int,
        done: list[Contribution],
        lost: list[str],
        accuracy: float,
        test_loss: float,
        wall_seconds: float,
    ) -> RoundRecord:
        parts = [part.record for part in done]
        samples = sum(part.samples for part in parts)
        seconds = [part.device_seconds.total for part in parts]
        return RoundRecord(
            round=number,
            clock="+".join(sorted({part.clock for part in done})),
            accuracy=accuracy,
            test_loss=test_loss,
            train_loss=sum(part.loss * part.samples for part in parts) / samples,
            images_per_device_second=samples / sum(seconds) if any(seconds) else 0.0,
            slowest_device_seconds=max(seconds),
            wall_seconds=wall_seconds,
            devices=parts,
            lost=lost,
        )
