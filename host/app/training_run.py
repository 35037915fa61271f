"""Training of one run on a fleet that is there: rounds are trained, recorded and shown, until all are done."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path

from csd_emu.engines import Engine
from csd_emu.engines.rapl import RaplMeter
from csd_emu.util.node_names import HOST
from firmware_agent.common.errors import DeviceCodeFailed, DeviceError, UserCodeFailed
from host.app.make_sync_training import make_participants, make_sync_training, overlap_of
from host.app.round_table import RoundTable
from host.app.run_request import RunRequest
from host.core.failures import Failures
from host.core.records import EventKind
from host.core.states.peer_servers import PeerServers
from host.core.states.training_state import TrainingState
from host.fleet.control_socket import ControlServer
from host.fleet.fleet import Fleet
from host.monitoring.machine_energy import MachineMeter
from host.monitoring.metrics.info_metrics import describe_devices
from host.monitoring.recorder import Recorder
from host.monitoring.run_directory import RunDirectory
from host.monitoring.run_facts import DeviceFacts
from host.training.accounting import make_accountant
from host.training.federated import FederatedTraining
from host.training.multi_server.server_membership import ServerMembership, meeting, say_farewell
from host.training.round_exchange import RoundExchange, job_frame
from host.training.run_faults import RunFaults
from host.training.selection.planned_run import PlannedRun
from host.training.sync.run_guide import RunGuide
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
        self.accountant = make_accountant(request.config, request.models, overlap_of(request))
        time = self.accountant.time
        self.clock = "+".join(sorted({time.clock(name, s.hello.clock) for name, s in fleet.sessions().items()}))
        self._planned: PlannedRun | None = None
        if request.planning is not None:
            where = directory.path, self.clock, self.accountant
            self._planned = PlannedRun(request.planning, *where, recorder.add_event, only=plan_only)
        self.training: Training | None = None

    def list_devices(self) -> list[DeviceFacts]:
        """Return facts of the devices that have a session."""
        hellos = {device: session.hello for device, session in self._fleet.sessions().items()}
        config = self._request.config
        placed = {device.name: self._engine.hypervisor_of(device) for device in config.list_nodes()}
        hypervisors = {name: hypervisor for name, hypervisor in placed.items() if hypervisor is not None}
        return describe_devices(config, self.accountant.time, hellos, hypervisors)

    async def train(
        self, member: ServerMembership | None, control: Path, state: TrainingState | None, quiet: bool
    ) -> None:
        """Train to the end; where the user's code fails, a run that has begun ends, too, and notes why.

        Args:
            member: of servers that train together.
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
                self.training = self._make_training(faults, together)
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
        recorder, meter = self._recorder, MachineMeter(RaplMeter.open())
        with RoundTable(self.clock, quiet, self._request.job.mode) as table:
            recorder.listeners.append(table)
            # What is decided without a trial, from tables, is gone on with for a step, so that it can be resumed.
            while not training.done and not (self._over() and recorder.last_round):
                self._failures.round = 1 + recorder.last_round
                record = meter.metered(await training.run_round())
                await recorder.add_round(record, training, last=self._over())

    def _make_training(self, faults: RunFaults, together: PeerServers | None) -> Training:
        request, on_event, accountant = self._request, self._recorder.add_event, self.accountant
        if request.sync is not None:
            tuner = None if self._planned is None else self._planned.tuner
            return make_sync_training(
                request,
                make_participants(request, self._fleet, self._list_existing, on_event, self._failures),
                accountant,
                faults,
                lambda log: self._recorder.add_slices(log.records()),
                RunGuide(tuner, self._over, self._recorder.add_step, self._recorder.add_retune),
                together,
            )
        frame = job_frame(request.job, request.spec, request.dataset.image_scale, request.proximal)
        names = [device.name for device in request.config.list_devices()]
        exchange = RoundExchange(
            *(request.job, frame, self._fleet, self._list_existing, on_event, faults.before_task, self._failures),
            accountant.time.clock,
        )
        plugin = request.plugins.strategy
        return FederatedTraining(request.job, names, exchange, accountant, request.evaluator, on_event, plugin)

    def _over(self) -> bool:
        """Whether the run ends before its training is done."""
        return self._planned is not None and self._planned.over

    def _list_existing(self) -> Collection[str]:
        return self._engine.list_devices(self._request.config.name)
