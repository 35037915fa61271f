"""Counted seconds of every step of a job, drive by drive: what sampled ones are drawn from and held against."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import EnvironmentUnfit
from firmware_agent.common.frames.session_frames import Tensors, Train, Trained
from firmware_agent.common.slices import Array, cut_slices, tensor_specs
from firmware_agent.common.split.activations import device_number, epoch_order
from firmware_agent.common.wire import encode, pack
from host.app.prepare import RunRequest
from host.app.training_run import round_frame
from host.config.participation import choose_devices
from host.core.records import DeviceRound, DeviceStep, RoundRecord, StepRecord
from host.core.sampling.sampled_steps import round_sizes
from host.core.tensor_sums import round_weights, weighted_mean
from host.fleet.device_session import DeviceSession
from host.training.round_exchange import prepare_device

WATCHDOG_SECONDS = 3600.0


class SeriesStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a drive.

    Attributes:
        records: of the step.
        seconds: counted.
        weight: cgroup weight of the task that competed.
    """

    records: int
    seconds: float
    weight: int = 0


class DevicePass(msgspec.Struct, frozen=True, kw_only=True):
    """What a drive did between two exchanges of weights: a round, or a synchronous step.

    Attributes:
        device: its name.
        steps: of a synchronous job one.
        encode_seconds: of copying the weights out behind them; of a synchronous step they are in its own.
    """

    device: str
    steps: list[SeriesStep]
    encode_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """All of them."""
        return sum(step.seconds for step in self.steps) + self.encode_seconds


class StepSeries(msgspec.Struct, frozen=True, kw_only=True):
    """A job's steps.

    Attributes:
        sync: whether it is a synchronous job.
        passes: of each exchange, of the drives that took part.
        round_passes: how many exchanges each round has; they end with a record.
        epochs, batch_size: of a federated job.
    """

    sync: bool
    passes: list[list[DevicePass]]
    round_passes: list[int]
    epochs: int = 1
    batch_size: int = 1

    @property
    def devices(self) -> list[str]:
        """Names of the drives, in order of their first steps."""
        return list(dict.fromkeys(part.device for parts in self.passes for part in parts))

    def device_seconds(self) -> dict[str, float]:
        """Return device -> its seconds in the whole job."""
        found = dict.fromkeys(self.devices, 0.0)
        for part in (part for parts in self.passes for part in parts):
            found[part.device] += part.seconds
        return found


def series_of_run(rounds: Sequence[RoundRecord], drives: Iterable[str]) -> StepSeries:
    """Return the steps of a counted synchronous run, in a virtual machine's seconds, which are alike for all profiles.

    Args:
        rounds: of the run.
        drives: whose seconds were counted.

    Raises:
        EnvironmentUnfit: it has no steps.
    """
    counted, passes = frozenset(drives), []
    scales = _scales_of(rounds)
    for record in rounds:
        passes += [
            [
                DevicePass(device=part.device, steps=[_series_step(kind, part.compute_seconds, scales[kind])])
                for part in step.devices
                if (kind := _kind_of(part, step)) in scales and part.device in counted and part.batch_size
            ]
            for step in record.steps
        ]
    if not any(passes):
        raise EnvironmentUnfit("the run has no synchronous steps whose seconds were counted")
    return StepSeries(sync=True, passes=passes, round_passes=[len(record.steps) for record in rounds])


class _Scale(NamedTuple):
    """What turns seconds of a drive's profile into those that its virtual machine counted, in one round.

    Attributes:
        encode_seconds: of the profile, of one step: the same whatever its size.
        counted_encode_seconds: of the machine.
        factor: of all other seconds.
    """

    encode_seconds: float
    counted_encode_seconds: float
    factor: float

    def counted(self, seconds: float) -> float:
        """Return the machine's seconds of a step."""
        return max(0.0, seconds - self.encode_seconds) * self.factor + self.counted_encode_seconds


class _Kind(NamedTuple):
    """What decides a step's scale: on the core's model that of small batches is another than that of large ones.

    Attributes:
        device: its name.
        records: of the step.
        weight: cgroup weight of the task that competed.
    """

    device: str
    records: int
    weight: int


def _kind_of(part: DeviceStep, step: StepRecord) -> _Kind:
    return _Kind(part.device, part.batch_size, step.disturbed.get(part.device, 0))


def _scales_of(rounds: Sequence[RoundRecord]) -> dict[_Kind, _Scale]:
    """Return the scale of each kind of steps: one for the whole run, so that no step seems to differ by it.

    It is that of the round most of whose steps of the drive are of the kind, and of the last one of these.
    """
    found: dict[_Kind, _Scale] = {}
    shares: dict[_Kind, float] = {}
    for record in rounds:
        parts = {part.device: part for part in record.devices}
        kinds = Counter(_kind_of(part, step) for step in record.steps for part in step.devices if part.device in parts)
        of_device = {device: sum(n for kind, n in kinds.items() if kind.device == device) for device in parts}
        for kind, steps in kinds.items():
            share = steps / of_device[kind.device]
            if share >= shares.get(kind, 0.0):
                shares[kind], found[kind] = share, _scale_of(parts[kind.device], record)
    return found


def _scale_of(part: DeviceRound, record: RoundRecord) -> _Scale:
    profile, counted = part.device_seconds, part.stopwatch_seconds
    steps = max(1, len(record.step_parts.get(part.device, ())))
    computed = profile.total - profile.encode
    factor = (counted.total - counted.encode) / computed if computed > 0 else 1.0
    return _Scale(profile.encode / steps, counted.encode / steps, factor)


def _series_step(kind: _Kind, compute_seconds: float, scale: _Scale) -> SeriesStep:
    return SeriesStep(records=kind.records, seconds=scale.counted(compute_seconds), weight=kind.weight)


class _Answer(NamedTuple):
    """What a drive returned from a round."""

    weights: dict[str, Array]
    samples: int
    steps: DevicePass


async def record_federated(request: RunRequest, sessions: Mapping[str, DeviceSession]) -> StepSeries:
    """Train a federated job's rounds on virtual machines that say how long each step took.

    The weights are the mean of the drives', whatever the job's strategy: a step's instructions hardly depend on them.

    Args:
        request: of the job.
        sessions: device -> its session.
    """
    job, frame = request.job, round_frame(request)
    for session in sessions.values():
        await prepare_device(session, frame, Deadline(WATCHDOG_SECONDS))
    weights, passes = request.evaluator.initial_weights(), []
    for number in range(1, job.rounds + 1):
        chosen = choose_devices(list(sessions), job.participation, job.seed, number).chosen
        visits = (_train(request, sessions[device], number, weights) for device in sessions if device in chosen)
        answers = await asyncio.gather(*visits)
        shares = round_weights([answer.samples for answer in answers])
        weights = weighted_mean([(n, answer.weights) for n, answer in zip(shares, answers, strict=True)])
        passes.append([answer.steps for answer in answers])
        if job.target is not None and request.evaluator.evaluate(weights).accuracy >= job.target.accuracy:
            break
    return StepSeries(
        sync=False, passes=passes, round_passes=[1] * len(passes), epochs=job.epochs, batch_size=job.batch_size
    )


async def _train(request: RunRequest, session: DeviceSession, number: int, weights: Mapping[str, Array]) -> _Answer:
    """Have one drive train a round whose batches are named, as it would have drawn them itself."""
    job, samples, deadline = request.job, session.hello.samples, Deadline(WATCHDOG_SECONDS)
    seed, device = job.seed, device_number(session.device)
    orders = [epoch_order(seed, device, number, epoch, samples).astype("<u4") for epoch in range(job.epochs)]
    size = job.batch_size
    batches = [order[begin : begin + size].tobytes() for order in orders for begin in range(0, samples, size)]
    frames = (Tensors(number, tensor_specs(weights)), *cut_slices(number, weights), Train(number, 0, batches))
    for message in pack(map(encode, frames)):
        await session.send_encoded(message, deadline)
    arrays, trained = await session.receive_tensors(number, tensor_specs(weights), Trained, deadline)
    sizes = round_sizes(samples, job.epochs, size)
    steps = [
        SeriesStep(records=records, seconds=seconds.total)
        for records, seconds in zip(sizes, trained.step_seconds, strict=True)
    ]
    done = DevicePass(device=session.device, steps=steps, encode_seconds=trained.seconds.total)
    return _Answer({name: array.copy() for name, array in arrays.items()}, trained.samples, done)
