"""Training of one run on a fleet that is there: put together, trained round by round, recorded and shown."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import structs

from csd_emu.engines import Engine
from csd_emu.engines.rapl import RaplMeter
from csd_emu.perfmodel.overlap.overlapped_step import OverlapComposer
from csd_emu.profiles import get_profile
from csd_emu.util.deadline import Deadline
from csd_emu.util.node_names import HOST
from firmware_agent.common.errors import DeviceCodeFailed, DeviceError, UserCodeFailed
from firmware_agent.common.frames.session_frames import Job
from firmware_agent.common.heap import set_aside
from host.app.array_service import make_service, write_own
from host.app.prepare import RunRequest
from host.app.reviewed_training import first_cut, review_cut
from host.app.round_table import RoundTable
from host.core.evaluation import NormSum
from host.core.failures import Failures
from host.core.records import EventKind, OnEvent
from host.core.states.peer_servers import PeerServers
from host.core.states.training_state import TrainingState
from host.core.summary import name_clock
from host.core.tensor_sums import in_precision
from host.fleet.control_socket import ControlServer
from host.fleet.device_session import DeviceSession
from host.fleet.fleet import Fleet
from host.fleet.shards import dealt_alike
from host.monitoring.health_watch import HealthWatch
from host.monitoring.machine_energy import MachineMeter
from host.monitoring.metrics.info_metrics import describe_devices
from host.monitoring.recorder import Recorder
from host.monitoring.run_directory import RunDirectory
from host.monitoring.run_facts import DeviceFacts
from host.training.accounting import Accountant, make_accountant
from host.training.federated import FederatedTraining
from host.training.host_optimiser import TrainedModel, make_optimiser
from host.training.multi_server.server_membership import ServerMembership, meeting, say_farewell
from host.training.round_bands import make_round_bands
from host.training.round_exchange import RoundExchange, job_frame
from host.training.run_faults import RunFaults
from host.training.sampling.sampler_machine import SamplerMachine
from host.training.sampling.step_counter import StepCounter
from host.training.selection.planning import PlannedRun
from host.training.sync.disturbances import Disturbances
from host.training.sync.exchange.channel import OnSlices
from host.training.sync.exchange.step_exchange import StepExchange
from host.training.sync.host_part import HostPart
from host.training.sync.participants import Participants
from host.training.sync.round_totals import PLANNED, RunGuide
from host.training.sync.run_transfers import RunTransfers, make_overlap
from host.training.sync.server_model.server_model import ServerModel
from host.training.sync.several_servers import make_parts
from host.training.sync.sync_step import Stepper
from host.training.sync.sync_training import SyncTraining
from host.training.training_protocol import Training


class TrainingRun:
    """One run's training.

    Attributes:
        accountant: composes its time and energy.
        clock: of its seconds.
        training: None before `train` has made it.
    """

    def __init__(
        self,
        request: RunRequest,
        fleet: Fleet,
        engine: Engine,
        recorder: Recorder,
        failures: Failures,
        directory: RunDirectory,
        plan_only: bool,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            request: what to run.
            fleet: the devices that have dialled in.
            engine: knows which devices exist.
            recorder: of the run.
            failures: of the user's code.
            directory: of the run.
            plan_only: end when it is decided which devices train.
        """
        self._request, self._fleet, self._engine = request, fleet, engine
        self._recorder, self._failures, self._directory = recorder, failures, directory
        made = request.config, request.models, overlap_of(request), request.cycles
        self.accountant = make_accountant(*made, make_service(request))
        time = self.accountant.time
        self._bands = make_round_bands(request.config, time)
        self.clock = "+".join(sorted({time.clock(name, s.hello.clock) for name, s in fleet.sessions().items()}))
        self._counter: StepCounter | None = None
        self._planned = self._plan_devices(request, plan_only)
        self.training: Training | None = None

    def _plan_devices(self, request: RunRequest, only: bool) -> PlannedRun | None:
        """Return what chooses the devices that train; None if all do."""
        if request.planning is None:
            return None
        where = self._directory.path, self.clock, self.accountant
        return PlannedRun(request.planning, *where, self._recorder.add_event, only=only)

    def list_devices(self) -> list[DeviceFacts]:
        """Return facts of the devices that have a session."""
        hellos = {device: session.hello for device, session in self._fleet.sessions().items()}
        config = self._request.config
        placed = {device.name: self._engine.hypervisor_of(device) for device in config.list_nodes()}
        hypervisors = {name: hypervisor for name, hypervisor in placed.items() if hypervisor is not None}
        return describe_devices(config, self.accountant.time, hellos, hypervisors)

    async def train(
        self,
        member: ServerMembership | None,
        machines: Sequence[SamplerMachine],
        control: Path,
        state: TrainingState | None,
        quiet: bool,
    ) -> None:
        """Train to the end; where the user's code fails, a run that has begun ends, too, and notes why.

        Args:
            member: of servers that train together.
            machines: that count steps, on the clock ``sampled``.
            control: the socket of `csd-emu inject`.
            state: to go on from.
            quiet: print nothing.

        Raises:
            CsdError: no device is left, or servers do not meet.
        """
        request, recorder = self._request, self._recorder
        names = [node.name for node in request.config.list_nodes()]
        faults = RunFaults(self._fleet, names, self.accountant.time, recorder.add_event)
        note = partial(recorder.add_event, HOST, EventKind.NOTE)
        for text in request.notes:
            note(text)
        try:
            async with (
                meeting(member, self._directory.path, note) as together,
                ControlServer(control, faults.handle),
                faults,
            ):
                self.training = self._make_training(faults, together, machines, state)
                if state is not None:
                    self.training.restore(state)
                try:
                    await self._run_rounds(self.training, quiet)
                finally:
                    recorder.list_counted()
                if together is not None:
                    await say_farewell(together, self.training)
            if self._planned is not None:
                self._planned.tuner.finish()
        except (UserCodeFailed, DeviceError) as error:
            if not isinstance(error, UserCodeFailed) and not self._failures.list():
                raise
            self._end_failed(error)

    def check_planned(self) -> None:
        """Return if it could be decided who trains, or nobody asked.

        Raises:
            ConfigurationError: nothing is feasible.
        """
        if self._planned is not None and not self._failures.list():
            self._planned.check()

    def _end_failed(self, error: UserCodeFailed | DeviceError) -> None:
        """Note with what the run ends in which the user's code failed; what that did in a drive is known already."""
        if isinstance(error, UserCodeFailed) and not isinstance(error, DeviceCodeFailed):
            self._failures.take(error, HOST)
        self._recorder.add_event(HOST, EventKind.NOTE, f"the run ends: {error}")

    async def _run_rounds(self, training: Training, quiet: bool) -> None:
        """Train to the end, and show and write down each round."""
        request, recorder, meter = self._request, self._recorder, MachineMeter(RaplMeter.open())
        watch = HealthWatch(recorder.add_event)
        clock, mode = name_clock(self.clock, request.config.core_model), request.job.mode
        with RoundTable(clock, quiet, mode, request.evaluator.figures) as table:
            recorder.listeners.append(table)
            # What is decided without a trial, from tables, is gone on with for a step, so that it can be resumed.
            while not training.done and not (self._over() and recorder.last_round):
                self._failures.round = 1 + recorder.last_round
                write_own(request, self.accountant, recorder.last_round, training.weights, recorder.add_event)
                record = self._bands.add_to(meter.metered(await training.run_round()))
                if self._counter is not None:
                    record = structs.replace(record, sampling=self._counter.steps.record())
                watch.look_at(record)
                await recorder.add_round(record, training, last=self._over())
                self.accountant.service.check_full()

    def _make_training(
        self,
        faults: RunFaults,
        together: PeerServers | None,
        machines: Sequence[SamplerMachine],
        state: TrainingState | None,
    ) -> Training:
        request, on_event, accountant = self._request, self._recorder.add_event, self.accountant
        if request.sync is None:
            self._counter = make_counter(request, machines, accountant, on_event)
            exchange = RoundExchange(
                *(request.job, round_frame(request), self._fleet, self._list_existing, on_event),
                *(faults.before_task, self._failures),
            )
            exchange.learning_rate = request.round_rate
            training = FederatedTraining(
                *(request.job, [device.name for device in request.config.list_devices()], exchange, accountant),
                *(request.evaluator, request.plugins.strategy, self._counter),
            )
            training.in_place = request.records.in_place
            return training
        participants = make_participants(request, self._fleet, self._list_existing, on_event, self._failures)

        def make(request: RunRequest, planned: PlannedRun | None) -> SyncTraining:
            self._counter = make_counter(request, machines, accountant, on_event)
            training = make_sync_training(
                *(request, participants, accountant, faults),
                lambda log: self._recorder.add_slices(log.records()),
                RunGuide(
                    None if planned is None else planned.tuner,
                    *(self._over, self._recorder.add_step, self._recorder.add_retune),
                ),
                together,
            )
            training.count_with(self._counter)
            return training

        def make_elsewhere(request: RunRequest) -> SyncTraining:
            made = make_accountant(request.config, request.models, overlap_of(request), request.cycles)
            planned = self._plan_devices(request, only=False)
            training = make(request, planned)
            accountant.change_cut(made)
            self._planned, self._bands = planned, make_round_bands(request.config, accountant.time)
            return training

        cut, first = None if together is not None else first_cut(request, state), make(request, self._planned)
        return first if cut is None else review_cut(request, cut, first, make_elsewhere, on_event)

    def _over(self) -> bool:
        """Whether the run ends before its training is done."""
        return self._planned is not None and self._planned.over

    def _list_existing(self) -> Collection[str]:
        return self._engine.list_devices(self._request.config.name)


def make_counter(
    request: RunRequest, machines: Sequence[SamplerMachine], accountant: Accountant, on_event: OnEvent
) -> StepCounter | None:
    """Return what counts steps of a run on the clock ``sampled``; None on any other."""
    if not machines:
        return None
    array, sync, sampled = request.array, request.sync is not None, request.config.sampled
    nodes = array.config.list_nodes() if array.among is None else array.among
    dealt = request.dealt
    places = machines[0].place_records(request.dataset)
    own = {
        node.name: places[np.concatenate([private, dealt.public])]
        for node, private in zip(nodes, dealt.private, strict=True)
        if node.name in sampled
    }
    frame = _step_frame(request) if sync else round_frame(request)
    return StepCounter(frame, request.job, machines, own, accountant.time.competitor, on_event)


def make_participants(
    request: RunRequest,
    fleet: Fleet,
    list_existing: Callable[[], Collection[str]],
    on_event: OnEvent,
    failures: Failures | None = None,
) -> Participants:
    """Return who can take part in the steps of a job; arguments are those of `Participants`."""
    nodes = [node.name for node in request.config.list_nodes()]
    return Participants(nodes, fleet, list_existing, request.job.watchdog, on_event, failures)


def make_sync_training(
    request: RunRequest,
    participants: Participants,
    accountant: Accountant,
    faults: RunFaults,
    on_slices: OnSlices = lambda _: None,
    guide: RunGuide = PLANNED,
    together: PeerServers | None = None,
) -> SyncTraining:
    """Return the training of a synchronous job; nothing is sent yet.

    `on_slices` is told what became of the slices of steps that overlap; `together` are the other servers.
    """
    if (plan := request.sync) is None:
        raise ValueError(f"a job of mode: {request.job.mode} has no plan of synchronous steps")
    disturbances = Disturbances(request.job.disturb, faults.slow)
    model = _make_model(request)
    set_aside()  # with the optimiser has come all of torch that steps need

    async def before_step(session: DeviceSession, step: int, deadline: Deadline) -> None:
        await faults.before_task(session, deadline)
        if (detail := await disturbances.apply(session, step, deadline)) is not None:
            faults.record(session.device, detail)

    def speaks(session: DeviceSession, step: int) -> bool:
        return faults.waits_for(session.device) or disturbances.changes(session, step)

    transfers = RunTransfers(request.communication, on_slices)
    ending, make_training = make_parts(together)
    exchange = StepExchange(
        *(_step_frame(request), request.job.watchdog, participants.on_event, before_step, speaks),
        *(transfers.add, participants.run_failures),
    )
    alike = dealt_alike(request.config.list_nodes(), request.job.data, plan.sizes)
    stepper = Stepper(model, plan, exchange, accountant, _make_host_part(request, model), alike, ending)
    return make_training(plan, participants, stepper, disturbances, request.evaluator, transfers, guide)


def _make_model(request: RunRequest) -> TrainedModel:
    structure = request.evaluator.structure()
    weights = in_precision(request.evaluator.initial_weights(), request.job.chosen_precision)
    optimiser = make_optimiser(request.job, structure, weights, request.optimizer)
    return TrainedModel(weights, structure, optimiser, _norm_sums(request))


def round_frame(request: RunRequest) -> Job:
    """Return the frame that tells a drive what it trains in rounds."""
    frame = job_frame(request.job, request.spec, request.objective, request.proximal, optimizer=request.optimizer)
    return frame if request.contract is None else request.contract.added_to(frame)


def _step_frame(request: RunRequest) -> Job:
    """Return the frame that tells a drive what it computes steps of."""
    cut = None if request.placed is None else request.placed.layer
    return job_frame(request.job, request.spec, request.objective, overlap=request.communication.overlap, cut=cut)


def _norm_sums(request: RunRequest) -> tuple[NormSum, ...]:
    """Return the sums of a step with batch normalisation over all devices."""
    sync, placed = request.job.sync, request.placed
    if sync.batch_norm != "synchronised":
        return ()
    return request.evaluator.batch_norm_sums(request.job.chosen_precision, None if placed is None else placed.layer)


def overlap_of(request: RunRequest) -> OverlapComposer | None:
    """Return what composes the steps of a job whose exchange overlaps computing; None if they do not."""
    job, placed = request.job, request.placed
    if not request.communication.composed:
        return None
    model = _make_model(request)
    weights, optimiser = model.weights, model.optimiser
    barrier = optimiser.needs_all is not None
    block_bytes = None if barrier else optimiser.block_bytes
    moved = () if placed is None else placed.moved
    rules = job.sync.batch_norm, block_bytes, barrier, moved, request.shares
    composer = make_overlap(request.evaluator, weights, *rules)
    communication = request.communication
    return replace(composer, traced=communication.tuner.learns and not communication.overlap)


def _make_host_part(request: RunRequest, model: TrainedModel) -> HostPart | None:
    """Return the host's part of a model that is cut; None if the devices have all of it."""
    job, placed = request.job, request.placed
    if placed is None:
        return None
    cut = request.evaluator.cut(placed.layer, job.chosen_precision)
    trained, tied = model.structure.trained, model.structure.tied
    tail = ServerModel(cut, model.weights, trained, tied, job.sync.batch_norm, job.seed)
    ratio = get_profile(request.config.host.profile).ratio
    # How long the host's part takes where that is not this machine's clock to say.
    clock = partial(placed.tail_seconds, host=request.host_model, ratio=ratio.middle.value if ratio else None)
    return HostPart(tail, model, clock, len(placed.moved))
