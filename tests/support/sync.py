"""A synchronous run on fake drives: gradients that can be worked out by hand, seconds of a calibration table."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from csd_emu.config.array_file import ArrayConfig
from csd_emu.profiles.calibration import CalibrationStore
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.session_frames import Disturb, Disturbed, Job
from firmware_agent.common.frames.step_frames import OwnRecords, Step, Stepped
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.slices import Array
from firmware_agent.common.wire import AnyFrame
from host.config.job_file import JobConfig
from host.core.evaluation import Evaluator, NormSum
from host.core.records import EventKind, EventRecord, RoundRecord
from host.core.states.peer_servers import PeerServers
from host.core.tuning.batch_tuner import BatchTuner
from host.fleet.fleet import Fleet
from host.monitoring.recorder import Recorder
from host.policies.schedules import make_schedule
from host.training.accounting import make_accountant
from host.training.host_optimiser import TrainedModel, make_optimiser
from host.training.run_faults import RunFaults
from host.training.sync.disturbances import Disturbances
from host.training.sync.exchange.slice_log import SliceLog
from host.training.sync.exchange.step_exchange import StepExchange
from host.training.sync.host_part import HostPart
from host.training.sync.participants import Participants
from host.training.sync.round_totals import RunGuide
from host.training.sync.run_transfers import RunTransfers
from host.training.sync.server_model.server_model import ServerModel
from host.training.sync.several_servers import make_parts
from host.training.sync.sync_step import Stepper
from host.training.sync.sync_training import SyncTraining
from host.training.sync_plan import Records, SyncPlan, make_plan
from host.training.transfer_policy import UNSLICED, TransferPolicy
from tests.support.fakes import JOB, Answer, FakeDrive, FakeEvaluator, FakeFleet

SHAPE = (1, 8, 8)
# Of a record in the host's part of a model.
TAIL_SECONDS = 1e-4
STORE = CalibrationStore(Path("/nonexistent"))
TABLE = STORE.require(ShippedCode("digits_cnn"), SHAPE)


def gradient(records: Array) -> float:
    """What every element of a fake drive's gradient is: the mean of its records' numbers, and one."""
    return 1.0 + float(np.mean(records))


def numbers_of(task: Step) -> Array:
    """The records of a step as the host has them: indices into the shard, or places in the drive's own order."""
    if isinstance(task.records, OwnRecords):
        return np.concatenate([np.arange(begin, begin + count, dtype=np.uint32) for begin, count in task.records.runs])
    return np.frombuffer(task.records, "<u4")


class StepDrive(FakeDrive):
    """A drive that takes what its table says, times `slowdown`; it writes down what it was dealt."""

    def __init__(self, device: str = "csd-00", slowdown: float = 1.0, clock: str = "counted") -> None:
        super().__init__(device, clock=clock)
        self.slowdown = slowdown
        self.weight = 0
        self.by_step: dict[int, list[int]] = {}
        self.frozen = False

    @property
    def dealt(self) -> list[list[int]]:
        """The records of each step that it took part in."""
        return list(self.by_step.values())

    def answer(self, frame: AnyFrame) -> Iterator[Answer]:
        if isinstance(frame, Step):
            yield from self.step_on(frame, self.inbound.arrays())
        elif isinstance(frame, Disturb):
            self.weight = frame.weight
            yield Disturbed(frame.weight)
        else:
            yield from super().answer(frame)

    def prepare(self, job: Job) -> Iterator[Answer]:
        self.frozen = job.batch_norm == "frozen"
        yield from super().prepare(job)

    def step_on(self, task: Step, weights: Mapping[str, Array]) -> Iterator[Answer]:
        records = numbers_of(task)
        self.by_step[task.step] = records.tolist()
        yield from self.tensors(task.step, self.gradients(records, weights))
        yield self.stepped(task)

    def gradients(self, records: Array, weights: Mapping[str, Array]) -> dict[str, Array]:
        value = gradient(records)
        gradients = {"w": np.full_like(weights["w"], value), "b": np.full_like(weights["b"], value)}
        return gradients if self.frozen else gradients | {"n": weights["n"] + 1}

    def stepped(self, task: Step) -> Stepped:
        samples = len(numbers_of(task))
        return Stepped(task.step, samples, 0.5, self.seconds(samples), 64 * samples)

    def seconds(self, samples: int) -> PhaseSeconds:
        step = TABLE.step_seconds(samples)
        factor = self.slowdown * (100 + self.weight) / 100
        encode = factor * TABLE.encode_seconds_median
        return PhaseSeconds(factor * step.forward, factor * step.backward, 0.0, encode)


def sums_of(evaluator: Any, frame: Job) -> Sequence[NormSum]:
    """What a step's drives add up, if the job has them do so."""
    return evaluator.norm_sums(frame) if frame.batch_norm == "synchronised" else ()


class SyncRun:
    """A synchronous training on fakes, and what it told; devices that are in `existing` may come back."""

    def __init__(
        self,
        *drives: Any,
        records: int = 60,
        private: Sequence[int] | None = None,
        existing: Collection[str] = (),
        evaluator: Any = None,
        modelled: bool = False,
        communication: TransferPolicy = UNSLICED,
        frame: Job = JOB,
        watchdog_seconds: float = 30.0,
        on_log: Callable[[SliceLog], None] = lambda _: None,
        tail: Callable[[dict[str, Array]], ServerModel] | None = None,
        most_records: int | None = None,
        make_tuner: Callable[[SyncPlan], BatchTuner] | None = None,
        pause: Callable[[], bool] = lambda: False,
        own: ArrayConfig | None = None,
        whole: ArrayConfig | None = None,
        together: PeerServers | None = None,
        recorder: Recorder | None = None,
        in_place: Mapping[str, str] | None = None,
        **job: Any,
    ) -> None:
        fields: dict[str, Any] = {
            **{"model": "digits_cnn", "data": {"source": "digits"}, "mode": "sync", "rounds": 1, "watchdog": "30 s"},
            **{"batch_size": 4, "learning_rate": 0.5, "momentum": 0.0},
        }
        self.job = JobConfig.model_validate(fields | job)
        self.drives, self.fleet, self.existing = drives, FakeFleet(*drives), set(existing)
        array = {"name": "fakes", "devices": [{"profile": "newport", "count": len(drives)}]}
        self.config = own or ArrayConfig.model_validate(array)
        self._together, self._recorder, whole = together, recorder, whole or self.config
        self.events: list[EventRecord] = []
        self.noted = asyncio.Event()
        self.rounds: list[RoundRecord] = []
        sizes = tuple(private or [0] * len(whole.list_devices()))
        held = Records(sizes, records, 64, in_place or {})
        self.plan = make_plan(whole, self.job, ShippedCode("digits_cnn"), SHAPE, STORE, held)
        schedule = make_schedule(self.job.schedule, None, self.plan.steps)
        self.plan = dataclasses.replace(self.plan, most_records=most_records, schedule=schedule)
        # Without models, what drives say of themselves counts.
        self.accountant = make_accountant(self.config, self.plan.expected if modelled else {})
        self.transfers, self.watchdog_seconds = RunTransfers(communication, on_log), watchdog_seconds
        self.frame = msgspec.structs.replace(
            frame,
            batch_norm=self.job.sync.batch_norm,
            overlap=communication.overlap,
            deadline_seconds=3 * watchdog_seconds,
        )
        self._tail, self._make_tuner, self._pause = tail, make_tuner, pause
        self.training = self._make(evaluator or FakeEvaluator())

    def on_event(self, device: str, what: EventKind, detail: str) -> None:
        self.events.append(EventRecord(device, what, detail))
        if what is EventKind.NOTE:
            self.noted.set()

    async def run(self) -> list[RoundRecord]:
        while not self.training.done:
            self.rounds.append(await self.training.run_round())
        return self.rounds

    def told(self, what: EventKind) -> list[str]:
        return [f"{event.device}: {event.detail}" for event in self.events if event.what == what]

    def _make(self, evaluator: Any) -> SyncTraining:
        weights, structure = evaluator.initial_weights(), evaluator.structure()
        optimiser = make_optimiser(self.job, structure, weights)
        fleet, judge = cast(Fleet, self.fleet), cast(Evaluator, evaluator)
        faults = RunFaults(fleet, self.plan.nodes, self.accountant.time, self.on_event)
        disturbances = Disturbances(self.job.disturb, faults.slow)

        async def before_step(session: Any, step: int, deadline: Any) -> None:
            await disturbances.apply(session, step, deadline)

        ending, make_training = make_parts(self._together)
        model = TrainedModel(weights, structure, optimiser, sums_of(evaluator, self.frame))
        part = None
        if self._tail is not None:
            part = HostPart(self._tail(weights), model, lambda records, _: TAIL_SECONDS * records)
        stepper = Stepper(
            *(model, self.plan),
            StepExchange(
                self.frame,
                self.watchdog_seconds,
                self.on_event,
                before_step,
                speaks=disturbances.changes,
                on_slices=self.transfers.add,
            ),
            self.accountant,
            part,
            ending=ending,
        )
        names = [device.name for device in self.config.list_devices()]
        participants = Participants(names, fleet, lambda: self.existing, 30.0, self.on_event)
        return make_training(
            *(self.plan, participants, stepper, disturbances, judge, self.transfers),
            self._make_guide(),
        )

    def _make_guide(self) -> RunGuide:
        tuner = None if self._make_tuner is None else self._make_tuner(self.plan)
        if self._recorder is None:
            return RunGuide(tuner, self._pause)
        return RunGuide(tuner, self._pause, self._recorder.add_step, self._recorder.add_retune)


async def assert_resumes(make: Callable[[], SyncRun]) -> None:
    """Whoever goes on from the state of a run after two rounds ends with what it would have, dealt out alike."""
    whole, first, second = make(), make(), make()
    await whole.run()
    await first.training.run_round()
    await first.training.run_round()
    state = first.training.state()
    progress = msgspec.json.decode(msgspec.json.encode(state.progress))
    second.training.restore(dataclasses.replace(state, progress=progress))
    await second.run()
    for name, array in whole.training.weights.items():
        assert np.array_equal(array, second.training.weights[name]), name
    for before, after in zip(whole.drives, second.drives, strict=True):
        assert before.dealt[-len(after.dealt) :] == after.dealt
