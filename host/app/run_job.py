"""`csd-emu run`: an array comes up (or is up already), a job trains on it, everything is cleaned up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from csd_emu.engines import Engine, make_engine
from csd_emu.engines.rapl import RaplMeter
from csd_emu.util.node_names import HOST
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from firmware_agent.common.errors import DeviceCodeFailed, DeviceError, UserCodeFailed
from host.app.make_sync_training import make_participants, make_sync_training, overlap_of
from host.app.round_table import RoundTable
from host.app.run_end import finish_run, report_run
from host.app.run_request import RunRequest
from host.config.server_group import ServerGroup
from host.core.console import console
from host.core.failures import CONTINUE, Failure, Failures
from host.core.garbage import rare_collections
from host.core.interrupts import INTERRUPTS
from host.core.json_logs import RunLog
from host.core.printing_failures import print_failure
from host.core.records import EventKind
from host.core.states.peer_servers import PeerServers
from host.core.summary import Summary
from host.fleet.array_state import ArrayState, array_folder
from host.fleet.control_socket import ControlServer
from host.fleet.fleet import Fleet, check_port
from host.fleet.lifecycle import DEVICES, attach_array, check_same, clear_array, list_running, start_array
from host.fleet.shards import check_shards
from host.monitoring.exporter import Exporter
from host.monitoring.machine_energy import MachineMeter
from host.monitoring.metrics.info_metrics import describe_devices, describe_run, describe_tables
from host.monitoring.metrics.metrics_state import MetricsState
from host.monitoring.metrics.round_counting import DeviceFacts
from host.monitoring.page.page_app import PageApp
from host.monitoring.page.page_facts import describe_presences, plan_run
from host.monitoring.page.run_history import History
from host.monitoring.recorder import Recorder, ResumePoint
from host.monitoring.run_directory import RunDirectory, check_writable
from host.monitoring.run_registry import LiveRun, announce
from host.training.accounting import Accountant, make_accountant
from host.training.federated import FederatedTraining
from host.training.multi_server.server_membership import (
    ServerMembership,
    alike_sha256,
    joined,
    meeting,
    publish_exporter,
    say_farewell,
)
from host.training.round_exchange import RoundExchange, job_frame
from host.training.run_faults import RunFaults
from host.training.run_sources import hash_sources
from host.training.selection.planned_run import PlannedRun
from host.training.sync.run_guide import RunGuide
from host.training.sync.sync_training import SyncTraining
from host.training.training_protocol import Training


@dataclass(frozen=True)
class Stay:
    """That a run stays when its training is done, with sessions, metrics and page, until the process is interrupted.

    Attributes:
        show: is called when the training is done.
        until: if given, goes on meanwhile, and ends the stay with its error.
    """

    show: Callable[[Summary], None]
    until: Callable[[], Coroutine[Any, Any, None]] | None = None


def run_job(
    request: RunRequest,
    paths: Paths,
    runs: Path,
    progress: Progress,
    quiet: bool,
    past: ResumePoint | None = None,
    stay: Stay | None = None,
    plan_only: bool = False,
) -> Summary:
    """Run the job and return its summary; whatever was started here has ended when this returns or raises.

    Args:
        request: what to run.
        paths: csd-emu's folders.
        runs: where a new run makes its directory.
        progress: shown the stages.
        quiet: print nothing.
        past: of a resumed run, which goes on in its own directory.
        stay: if drives, metrics and page shall stay until the process is interrupted, which is then the normal end.
        plan_only: end when it is decided which devices train; the run can be resumed.

    Raises:
        CsdError: something is missing, or no device is left.
        KeyboardInterrupt: the user ended it.
    """
    name = request.config.name
    if past is None:
        check_writable(runs)
    with array_folder(paths.arrays, name) as folder, contextlib.ExitStack() as stack:
        member = stack.enter_context(joined(request.server_group, name, partial(_alike, request), paths.runtime))
        server = "" if member is None else member.server_group.server
        metrics = MetricsState(describe_run(request.config, request.job, server))
        history, host = History(plan_run(request.config, request.job)), request.config.host
        page = PageApp(history, lambda: describe_presences(metrics))
        exporter = stack.enter_context(Exporter(metrics, host.metrics_port, host.address, page, host.names))
        if member is not None:
            publish_exporter(member, exporter.page_address)
        engine = stack.enter_context(contextlib.closing(make_engine(request.config, paths)))
        run = _Run(request, folder, paths.control(name), runs, engine, progress, quiet, exporter, history, past)
        run.stay, run.plan_only, run.member = stay, plan_only, member
        stack.enter_context(rare_collections())
        stack.callback(run.report)
        state = ArrayState.load(folder)
        running = list_running(state, paths) if state is not None else []
        if state is not None and running:
            check_same(request.array, state)
            given = {node.name for node in request.config.list_nodes() if node.data is None}
            written = {each.name: each.manifest_sha256 for each in state.devices if each.name in given}
            check_shards(written, folder / DEVICES)
            remedy = f"it was chosen by csd-emu up; csd-emu down {name} and up again choose another"
            check_port(state.address, state.port, remedy)
            return INTERRUPTS.run(run.on_array_that_is_up(state, running))
        check_port(request.config.host.address, request.config.host.port)
        try:
            clear_array(engine, name, folder)
            engine.prepare(progress)
            return INTERRUPTS.run(run.on_new_array())
        finally:
            with INTERRUPTS.deferred():
                clear_array(engine, name, folder)


def _alike(request: RunRequest, server_group: ServerGroup) -> str:
    """Return the hash of what all servers of the run must have alike."""
    return alike_sha256(request.job, request.trajectory_sha256(server_group.whole))


class _Run:
    """One run while its array is up."""

    def __init__(
        self,
        request: RunRequest,
        folder: Path,
        control: Path,
        runs: Path,
        engine: Engine,
        progress: Progress,
        quiet: bool,
        exporter: Exporter,
        history: History,
        past: ResumePoint | None,
    ) -> None:
        self._request, self._folder, self._control = request, folder, control
        self._runs, self._engine = runs, engine
        self._progress, self._quiet, self._exporter, self._past = progress, quiet, exporter, past
        self.stay: Stay | None = None
        self.member: ServerMembership | None = None
        self.plan_only, self._reported = False, False
        self._planned: PlannedRun | None = None
        self._metrics, self._history, self._meter = exporter.state, history, MachineMeter(RaplMeter.open())
        run_log = RunLog(past.last_round if past is not None else 0)
        every = request.job.checkpoint.every
        self._recorder = Recorder([exporter.state, history, run_log], request.sha256, every, past)
        goes_on = request.job.on_failure == CONTINUE
        self._failures = Failures(goes_on, self._show_failure, history.set_failures)
        if past is not None:
            self._failures.restore(past.failures)

    def report(self) -> None:
        """Write the report once, if the run has got as far as to have a directory."""
        if (directory := self._recorder.directory) is not None and not self._reported:
            self._reported = True
            report_run(directory.path, self._progress, self._exporter.render())

    async def on_array_that_is_up(self, state: ArrayState, running: Sequence[str]) -> Summary:
        """Train on devices that stay up afterwards; those that no longer run count as lost."""
        self._progress.stage(f"wait for {len(running)} drives to dial in")
        for device in state.devices:
            if device.name not in running:
                self._recorder.add_event(device.name, EventKind.LOST, "before the run began")
        self._metrics.start_booting()
        async with attach_array(state, running, self._folder, self._recorder.add_event) as fleet:
            return await self._train_and_stay(fleet)

    async def on_new_array(self) -> Summary:
        """Start the devices and train; the caller ends them."""
        count = len(self._request.config.list_devices())
        self._progress.stage(f"start {count} drives ({self._request.config.engine_label})")
        self._metrics.start_booting()
        async with contextlib.AsyncExitStack() as box:
            started = await start_array(self._request.array, self._folder, self._engine, box, self._recorder.add_event)
            self._metrics.set_boot_seconds(started.times.device_seconds)
            for device, why in started.lost.items():
                self._recorder.add_event(device, EventKind.LOST, why)
            return await self._train_and_stay(started.fleet)

    async def _train_and_stay(self, fleet: Fleet) -> Summary:
        summary = await self._record_and_train(fleet)
        if self.stay is not None and self._recorder.directory is not None:
            self._recorder.directory.close()  # from here on events are for Prometheus and the page alone
            await asyncio.to_thread(self.report)
            self.stay.show(summary)
            await INTERRUPTS.wait(*([] if self.stay.until is None else [self.stay.until()]))
            self._metrics.end()
        return summary

    async def _record_and_train(self, fleet: Fleet) -> Summary:
        self._progress.stage("")
        if not self._quiet:
            console.print(f"metrics for Prometheus: {self._exporter.address}")
            console.print(f"live page: {self._exporter.page_address}")
        if self._past is not None:
            return await self._train_live(fleet, self._past.directory)
        with RunDirectory.create(self._runs, self._request.config.name) as directory:
            self._recorder.open(directory)
            self._write_configuration(fleet, directory)
            return await self._train_live(fleet, directory)

    async def _train_live(self, fleet: Fleet, directory: RunDirectory) -> Summary:
        """Train while `csd-emu top` can find the run."""
        name = self._request.config.name
        with announce(self._folder, LiveRun.of_this_process(name, self._exporter.address, directory.path)):
            return await self._train(fleet, directory)

    def _write_configuration(self, fleet: Fleet, directory: RunDirectory) -> None:
        request, job = self._request, self._request.portable_job
        for name, source in request.user_files.items():
            directory.write_user_file(name, source)
        facts = {device: session.hello.facts for device, session in fleet.sessions().items()}
        server_group = None if request.server_group is None else request.server_group.dump()
        sources = hash_sources(request.user_files)
        directory.write_configuration(request.config, job, facts, request.profiles, server_group, sources)

    async def _train(self, fleet: Fleet, directory: RunDirectory) -> Summary:
        request, recorder = self._request, self._recorder
        accountant = make_accountant(request.config, request.models, overlap_of(request))
        recorder.follow(accountant)
        clocks = {accountant.time.clock(name, session.hello.clock) for name, session in fleet.sessions().items()}
        clock = "+".join(sorted(clocks))
        self._metrics.begin(
            self._describe(fleet, accountant), clock, describe_tables(request.job, request.expected, request.sync)
        )
        self._history.begin(clock, str(directory.path))
        if self.member is not None:
            done = directory.read_rounds() if self._past is not None else ()
            self._metrics.begin_servers(len(self.member.server_group.config.names), clock, done)
        names = [node.name for node in request.config.list_nodes()]
        faults = RunFaults(fleet, names, accountant.time, recorder.add_event)
        if request.planning is not None:
            on_event = recorder.add_event
            self._planned = PlannedRun(
                request.planning, directory.path, clock, accountant, on_event, only=self.plan_only
            )
        note = partial(recorder.add_event, HOST, EventKind.NOTE)
        for text in request.notes:
            note(text)
        control = ControlServer(self._control, faults.handle)
        training: Training | None = None
        try:
            async with meeting(self.member, directory.path, note) as together, control, faults:
                training = self._make_training(fleet, accountant, faults, together)
                if self._past is not None and self._past.state is not None:
                    training.restore(self._past.state)
                try:
                    await self._run_rounds(training, fleet, accountant, clock)
                finally:
                    recorder.list_counted()
                if together is not None:
                    await say_farewell(together, training)
            if self._planned is not None:
                self._planned.tuner.finish()
        except (UserCodeFailed, DeviceError) as error:
            if not isinstance(error, UserCodeFailed) and not self._failures.list():
                raise
            self._end_failed(error)
        return await self._finish(training, directory)

    def _show_failure(self, failure: Failure) -> None:
        self._recorder.add_failure(failure)
        print_failure(failure)

    def _end_failed(self, error: UserCodeFailed | DeviceError) -> None:
        """Note with what the run ends in which the user's code failed; what that did in a drive is known already."""
        if isinstance(error, UserCodeFailed) and not isinstance(error, DeviceCodeFailed):
            self._failures.take(error, HOST)
        self._recorder.add_event(HOST, EventKind.NOTE, f"the run ends: {error}")

    async def _finish(self, training: Training | None, directory: RunDirectory) -> Summary:
        """Write down how the run ended, and show it until its last metrics are scraped."""
        request, recorder, failures = self._request, self._recorder, self._failures.list()
        if isinstance(training, SyncTraining) and training.cut_short:
            # The round that ended early stands in the records; what it lacks is in one more.
            job = request.portable_job
            directory.write_job(job.model_copy(update={"rounds": job.rounds + 1}))
        weights = request.evaluator.initial_weights() if training is None else training.weights
        summary = finish_run(request, directory, weights, recorder.wall_seconds, failures)
        if self._planned is not None and not failures:
            self._planned.check()
        self._history.end()
        if self.stay is not None:
            self._metrics.rest()
            return summary
        self._metrics.end()
        await self._exporter.wait_for_scrapers()
        return summary

    async def _run_rounds(self, training: Training, fleet: Fleet, accountant: Accountant, clock: str) -> None:
        """Train to the end, and show and write down each round."""
        with RoundTable(clock, self._quiet, self._request.job.mode) as table:
            # What is decided without a trial, from tables, is gone on with for a step, so that it can be resumed.
            while not training.done and not (self._over() and self._recorder.last_round):
                self._failures.round = 1 + self._recorder.last_round
                record = self._meter.metered(await training.run_round())
                self._metrics.count_servers(record)
                self._metrics.describe(self._describe(fleet, accountant), clock)
                await self._recorder.add_round(record, training, last=self._over())
                for retune in record.retunes:
                    table.add_retune(retune)
                table.add(record)

    def _make_training(
        self, fleet: Fleet, accountant: Accountant, faults: RunFaults, together: PeerServers | None
    ) -> Training:
        request, on_event = self._request, self._recorder.add_event
        if request.sync is not None:
            return make_sync_training(
                request,
                make_participants(request, fleet, self._list_existing, on_event, self._failures),
                accountant,
                faults,
                lambda log: self._recorder.add_slices(log.records()),
                RunGuide(None if self._planned is None else self._planned.tuner, self._over),
                together,
            )
        frame = job_frame(request.job, request.spec, request.dataset.image_scale, request.proximal)
        names = [device.name for device in request.config.list_devices()]
        exchange = RoundExchange(
            *(request.job, frame, fleet, self._list_existing, on_event, faults.before_task, self._failures),
            accountant.time.clock,
        )
        plugin = request.plugins.strategy
        return FederatedTraining(request.job, names, exchange, accountant, request.evaluator, on_event, plugin)

    def _over(self) -> bool:
        """Whether the run ends before its training is done."""
        return self._planned is not None and self._planned.over

    def _describe(self, fleet: Fleet, accountant: Accountant) -> list[DeviceFacts]:
        hellos = {device: session.hello for device, session in fleet.sessions().items()}
        config = self._request.config
        placed = {device.name: self._engine.hypervisor_of(device) for device in config.list_nodes()}
        hypervisors = {name: hypervisor for name, hypervisor in placed.items() if hypervisor is not None}
        return describe_devices(config, accountant.time, hellos, hypervisors)

    def _list_existing(self) -> Collection[str]:
        return self._engine.list_devices(self._request.config.name)
