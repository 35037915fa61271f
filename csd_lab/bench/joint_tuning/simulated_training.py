"""A synchronous run without drives: the product's own loop and tuners on the array's model of time, nothing computed.

`host.training.sync.sync_training.SyncTraining` takes the steps, with the batches, transfers, cut and devices that the
product's tuners decide on. In place of drives a `SimulatedWorld` says how long each computes; steps are composed by the
run's own accountant. There are no gradients: weights stay, and nothing is learned.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Protocol, cast

import msgspec

from csd_emu.perfmodel.split.split_problem import LABEL_BYTES
from csd_emu.perfmodel.timeline import Composed, Crossed, Link
from csd_emu.util.node_names import HOST
from firmware_agent.common.errors import CsdError
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.step_frames import Stepped
from firmware_agent.common.send_queue import TransferSettings
from firmware_agent.common.slices import Array
from host.app.prepare import RunRequest
from host.app.reviewed_training import first_cut, review_cut
from host.app.training_run import overlap_of
from host.core.device_time import MODELLED, WALL, DeviceTime
from host.core.evaluation import Structure
from host.core.learning.judgement import Judgement
from host.core.records import DeviceRound, RetuneRecord, RoundRecord, StepRecord
from host.core.slice_record import TransferChange
from host.fleet.device_session import DeviceSession
from host.training.accounting import IN_TIME, Accountant, Lateness, make_accountant
from host.training.device_conduct import Conduct
from host.training.host_optimiser import HostOptimiser
from host.training.sync.disturbances import Disturbances
from host.training.sync.exchange.step_extension import DeviceOutcome, StepWork
from host.training.sync.participants import Participants
from host.training.sync.round_totals import RunGuide
from host.training.sync.run_transfers import RunTransfers
from host.training.sync.step_batches import StepAssignment
from host.training.sync.step_result import Expected, StepAccounting, StepResult
from host.training.sync.sync_step import Stepper
from host.training.sync.sync_training import SyncTraining
from host.training.training_protocol import Training


class SimulatedWorld(Protocol):
    """What happens in a run; `done` is the share of the job's records that were trained on before a step, from 0."""

    def slowness(self, device: str, done: float, records: int) -> float:
        """Return what the table's compute seconds of so many records are multiplied by."""

    def link_share(self, done: float) -> float:
        """Return what is left of the link's bandwidth, more than 0 and at most 1."""

    def absent(self, done: float) -> Collection[str]:
        """Return the drives that are not there."""

    def noise(self, step: int) -> float:
        """Return what all compute seconds of a step are multiplied by, beside that; one of few numbers."""


@dataclass
class SimulatedTraining:
    """What a run took.

    Attributes:
        steps: in their order.
        joules: of each round, host and all powered drives.
        notes: what people were told.
        retunes: new batches.
        transfer_changes: new slices and credits.
        decision_seconds: processor time of this machine in which tuners were told of steps, and decided.
    """

    steps: list[StepRecord] = field(default_factory=list)
    joules: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    retunes: list[RetuneRecord] = field(default_factory=list)
    transfer_changes: list[TransferChange] = field(default_factory=list)
    decision_seconds: float = 0.0

    @property
    def records(self) -> int:
        """In all gradients."""
        return sum(step.samples for step in self.steps)

    @property
    def seconds(self) -> float:
        """Of the array."""
        return math.fsum(step.array_seconds for step in self.steps)

    @property
    def records_per_second(self) -> float:
        """Of the whole run, the search of the tuners included."""
        return self.records / self.seconds

    @property
    def joules_per_record(self) -> float:
        """Of the whole run."""
        return math.fsum(self.joules) / self.records


class _WorldTime(DeviceTime):
    """Seconds of tables, times what happens in the world."""

    def __init__(self, time: DeviceTime, world: SimulatedWorld) -> None:
        vars(self).update(vars(time))
        self._world, self.done, self.noise = world, 0.0, 1.0
        self._known: dict[tuple[str, tuple[tuple[int, int], ...]], PhaseSeconds] = {}

    def seconds(
        self, device: str, hello_clock: str, measured: PhaseSeconds, batches: Mapping[int, int]
    ) -> PhaseSeconds:
        key = device, tuple(sorted(batches.items()))
        if key not in self._known:
            self._known[key] = super().seconds(device, hello_clock, measured, batches)
        records = sum(size * count for size, count in batches.items())
        factor = 1.0 if device == HOST else self.noise * self._world.slowness(device, self.done, records)
        seconds = self._known[key]
        return PhaseSeconds(seconds.forward * factor, seconds.backward * factor, 0.0, seconds.encode * factor)


class _WorldAccountant(Accountant):
    """Composes steps over the link as it is now."""

    def __init__(self, accountant: Accountant, world: SimulatedWorld) -> None:
        vars(self).update(vars(accountant))
        self._whole: Link = self._link
        self._world = world
        self.time = self._world_time = _WorldTime(accountant.time, world)
        # Equal steps in which nobody is late are composed once.
        self._composed: dict[Any, tuple[Composed, float]] = {}

    def go_to(self, step: int, done: float) -> None:
        """Have the world be as it is in this step."""
        self._world_time.done, self._world_time.noise = done, self._world.noise(step)
        self._link = replace(self._whole, bytes_per_second=self._whole.bytes_per_second * self._world.link_share(done))

    def _compose(
        self,
        parts: Sequence[DeviceRound],
        late: Lateness,
        host_seconds: float,
        sending: TransferSettings | None,
        crossed: Crossed | None,
    ) -> tuple[Composed, float]:
        if late is not IN_TIME:
            return super()._compose(parts, late, host_seconds, sending, crossed)
        own = tuple((part.device, part.samples, msgspec.structs.astuple(part.device_seconds)) for part in parts)
        key = own, sending, self._link, host_seconds
        if key not in self._composed:
            self._composed[key] = super()._compose(parts, late, host_seconds, sending, crossed)
        return self._composed[key]


class _NoScreening:
    """Believes all."""

    def __init__(self) -> None:
        self.conduct = Conduct(lambda *_: None)
        self.screen = SimpleNamespace(state=dict, load_state=lambda _: None)
        self.noise = SimpleNamespace(records=None, state=tuple, load_state=lambda _: None)


@dataclass
class _Begun:
    """The part of `host.training.sync.sync_step.Underway` that the loop asks for."""

    number: int
    dealt: StepAssignment
    probed: list[StepWork]
    rate: float
    expected: Expected | None
    announced: TransferSettings

    @property
    def devices(self) -> list[str]:
        return [work.device for work in self.dealt.works]

    def records(self) -> int:
        return sum(len(work.records) for work in self.dealt.works)

    def sent_with(self, _: object) -> TransferSettings:
        return self.announced


@dataclass
class RunShare:
    """How many records of all that the job trains on are done."""

    all_records: int
    records: int = 0

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return self.records / self.all_records


class _SimulatedStepper:
    """The part of `host.training.sync.sync_step.Stepper` that the loop asks for; a step takes no time of the wall's."""

    may_look_ahead = False
    counter = None

    def __init__(self, request: RunRequest, accountant: _WorldAccountant, progress: RunShare) -> None:
        assert request.sync is not None
        self._request, self._accountant, self._progress = request, accountant, progress
        self._state_bytes, self._gradient_bytes = _step_bytes(request)
        self.accounting = StepAccounting(accountant, request.sync, self._gradient_bytes)
        self.screening, self.ending = _NoScreening(), SimpleNamespace(together=None)
        optimiser = cast(HostOptimiser, SimpleNamespace(state=dict, load_state=lambda _: None))
        self.model = SimpleNamespace(weights=dict[str, Array](), optimiser=optimiser)

    def begin(
        self,
        number: int,
        dealt: StepAssignment,
        learning_rate: Callable[[int], float],
        probes: Sequence[StepWork] = (),
        expected: Expected | None = None,
        sending: TransferSettings | None = None,
    ) -> _Begun:
        self._accountant.go_to(number, self._progress.share)
        begun = _Begun(number, dealt, list(probes), 0.0, expected, sending or TransferSettings())
        begun.rate = learning_rate(max(1, begun.records()))
        return begun

    async def finish(self, step: _Begun) -> StepResult:
        own = [self._outcome(step.number, work) for work in step.dealt.works]
        beside = [self._outcome(step.number, work) for work in step.probed]

        def crossed(late: Collection[str]) -> Crossed | None:
            return self._crossed([each for each in own if each.device not in late])

        self._progress.records += step.records()
        cut = None if self._request.placed is None else crossed
        report = self.accounting.report(own, beside, step.expected, step.announced, cut)
        return self.accounting.result(report, False, step.rate)

    def _outcome(self, number: int, work: StepWork) -> DeviceOutcome:
        records = len(work.records)
        read_bytes = records * self._request.record_bytes
        stepped = Stepped(number, records, 0.0, PhaseSeconds(), read_bytes)
        placed = self._request.placed
        if work.device == HOST:
            return DeviceOutcome(work, stepped, None)
        down = 0 if placed is None else records * placed.point.record_bytes
        up = 0 if placed is None else down + records * LABEL_BYTES
        sent, received = self._state_bytes + down, self._gradient_bytes + up
        return DeviceOutcome(work, stepped, None, sent, received, up, down)

    def _crossed(self, there: Sequence[DeviceOutcome]) -> Crossed | None:
        request = self._request
        if request.placed is None or not there:
            return None
        records = sum(len(each.work.records) for each in there)
        seconds = request.placed.tail_seconds(records, [], request.host_model, None)
        remote = [each for each in there if each.device != HOST]
        up, down = ({each.device: getattr(each, way) for each in remote} for way in ("up_bytes", "down_bytes"))
        return Crossed(up, down, seconds, MODELLED)


class _SimulatedParticipants:
    """The part of `host.training.sync.participants.Participants` that the loop asks for."""

    def __init__(self, nodes: Sequence[str], absent: Callable[[], Collection[str]], notes: list[str]) -> None:
        self.nodes, self._absent = list(nodes), absent
        self.conduct, self.on_event = Conduct(lambda *_: None), lambda *told: notes.append(": ".join(map(str, told)))
        self._sessions = {node: _session(node) for node in nodes}

    async def present(self, step: int) -> dict[str, DeviceSession]:
        gone = set(self._absent())
        return {node: session for node, session in self._sessions.items() if node not in gone}

    def took_part(self, devices: Collection[str], failed: Mapping[str, CsdError]) -> None:
        assert not failed


def _session(node: str) -> DeviceSession:
    return cast(DeviceSession, SimpleNamespace(device=node, hello=SimpleNamespace(clock=WALL, facts={})))


class _NoJudge:
    """A `WeightsJudge` of weights that nobody trains."""

    def initial_weights(self) -> dict[str, Array]:
        return {}

    def structure(self) -> Structure:
        return Structure((), (), {})

    def evaluate(self, weights: Mapping[str, Array]) -> Judgement:
        return Judgement(0.0, 0.0)


def _step_bytes(request: RunRequest) -> tuple[int, int]:
    """Return the bytes that each drive receives, and sends, in a step, without what crosses a cut."""
    structure, weights = request.evaluator.structure(), request.evaluator.initial_weights()
    moved: set[str] = set()
    if request.placed is not None:
        layers = set(request.placed.moved)
        moved = {name for layer in request.evaluator.layers() if layer.name in layers for name in layer.tensors}
    buffers = structure.buffers if request.job.sync.batch_norm != "frozen" else ()
    state = sum(a.nbytes for name, a in weights.items() if name not in moved and name not in structure.tied)
    gradient = sum(weights[name].nbytes for name in (*structure.trained, *buffers) if name not in moved)
    return state, gradient


def simulate_training(request: RunRequest, world: SimulatedWorld) -> SimulatedTraining:
    """Return what a run of this job takes in that world, to its last round.

    Args:
        request: a synchronous job on native drives whose seconds are modelled.
        world: what happens.

    Raises:
        ConfigurationError: nothing that was asked for can be.
    """
    simulation = Simulation(request, world)
    run, rounds = simulation.run, asyncio.run(_rounds(simulation.begin()))
    for record in rounds:
        parts = [*(part.energy_joules for part in record.devices), *record.energy_joules.values()]
        run.joules.append(sum(sum(part.values()) for part in parts))
        run.transfer_changes += record.transfer_changes
    return run


class Simulation:
    """One run.

    Attributes:
        run, progress: what it took so far, and how far it is.
    """

    def __init__(self, request: RunRequest, world: SimulatedWorld) -> None:
        """Prepare; arguments are those of `simulate_training`."""
        plan = request.sync
        assert plan is not None
        self.run, self._request, self._world = SimulatedTraining(), request, world
        self.progress = RunShare(plan.steps * sum(plan.batches))
        participants = _SimulatedParticipants(plan.nodes, lambda: world.absent(self.progress.share), self.run.notes)
        self._participants = cast(Participants, participants)

    def begin(self) -> Training:
        """Return its training, with the cut looked at between steps where the product does."""
        cut, first = first_cut(self._request, None), self._make(self._request)
        if cut is None:
            return first
        training = review_cut(self._request, cut, first, self._make, lambda *told: self.run.notes.append(told[-1]))
        _time(training, "_look", self.run)
        return training

    def _make(self, request: RunRequest) -> SyncTraining:
        assert request.sync is not None
        made = make_accountant(request.config, request.models, overlap_of(request), request.cycles)
        accountant = _WorldAccountant(made, self._world)
        tuner = None
        if request.planning is not None:
            tuner = request.planning.make_tuner(lambda _: None, self.run.notes.append)
            if not request.planning.rules.constraints.unused_powered:
                accountant.powered_off = tuner.idle
        training = SyncTraining(
            *(request.sync, self._participants),
            cast(Stepper, _SimulatedStepper(request, accountant, self.progress)),
            Disturbances((), cast(Any, None)),
            _NoJudge(),
            RunTransfers(request.communication),
            RunGuide(tuner, on_step=lambda step, _: self.run.steps.append(step), on_retune=self.run.retunes.append),
        )
        for of, name in ((training._batches, "admit"), (training._batches, "observe"), (training._transfers, "learn")):
            _time(of, name, self.run)
        return training


def _time(of: object, name: str, run: SimulatedTraining) -> None:
    """Have the processor time of a method added to that of the run, in which nothing goes on beside it."""
    decide: Callable[..., Awaitable[object]] = getattr(of, name)

    async def timed(*arguments: object) -> object:
        begin = time.process_time()
        try:
            return await decide(*arguments)
        finally:
            run.decision_seconds += time.process_time() - begin

    setattr(of, name, timed)


async def _rounds(training: Training) -> list[RoundRecord]:
    records = []
    while not training.done:
        records.append(msgspec.structs.replace(await training.run_round(), spans=[]))
    return records
