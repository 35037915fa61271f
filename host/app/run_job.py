"""`csd-emu run`: an array comes up (or is up already), a job trains on it, everything is cleaned up.

At its end summary, timeline, final weights and the report are written.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from csd_emu.engines import Engine, make_engine
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from firmware_agent.common.slices import Array
from host.app.prepare import RunRequest, prepare_in_place
from host.app.training_run import TrainingRun
from host.core.console import console, errors, print_failure
from host.core.failures import CONTINUE, Failure, Failures
from host.core.interrupts import INTERRUPTS
from host.core.rare_collections import rare_collections
from host.core.records import EventKind
from host.core.summary import Summary, summarise
from host.fleet.array_state import ArrayState, array_folder
from host.fleet.fleet import Fleet, check_port
from host.fleet.lifecycle import DEVICES, attach_array, check_same, clear_array, list_running, start_array
from host.fleet.shards import check_shards
from host.monitoring.exporter import Exporter
from host.monitoring.metrics.info_metrics import describe_run, describe_tables
from host.monitoring.metrics.metrics_state import MetricsState
from host.monitoring.page.page_app import PageApp
from host.monitoring.page.run_history import History
from host.monitoring.recorder import Recorder, ResumePoint
from host.monitoring.run_directory import METRICS_FILE, REPORT_FILE, RunDirectory, check_writable, write_result
from host.monitoring.run_facts import RunFacts
from host.monitoring.run_listener import RunStart
from host.monitoring.run_log import RunLog
from host.monitoring.run_registry import LiveRun, announce
from host.monitoring.run_trace import write_slices, write_trace
from host.monitoring.trackers.tracker_listener import load_trackers
from host.policies.selection.selection_report import read_plan
from host.training.multi_server.server_membership import ServerMembership, alike_sha256, joined, publish_exporter
from host.training.run_sources import hash_sources
from host.training.sampling.sampler_machine import SamplerMachine


@dataclass(frozen=True)
class Stay:
    """That a run stays when its training is done, with sessions, metrics and page, until the process is interrupted.

    Attributes:
        show: is called when the training is done.
        until: if given, goes on meanwhile, and ends the stay with its error.
    """

    show: Callable[[Summary], None]
    until: Callable[[], Coroutine[Any, Any, None]] | None = None


@dataclass(frozen=True)
class _Options:
    """What is asked of a run beside its job: see `run_job`; `control` is the socket of `csd-emu inject`."""

    control: Path
    progress: Progress
    quiet: bool
    stay: Stay | None
    plan_only: bool


@dataclass(frozen=True)
class NewRun:
    """Where the directory of a new run is made.

    Attributes:
        runs: folder of run directories.
        opened: is told the directory, and the address of the live page.
        report: whether the report is written at the end; it takes a second or two, and can be written later.
    """

    runs: Path
    opened: Callable[[Path, str], object] = lambda *_: None
    report: bool = True


def run_job(
    request: RunRequest,
    paths: Paths,
    where: NewRun | ResumePoint,
    progress: Progress,
    quiet: bool,
    stay: Stay | None = None,
    plan_only: bool = False,
) -> Summary:
    """Run the job and return its summary; whatever was started here has ended when this returns or raises.

    Args:
        request: what to run.
        paths: csd-emu's folders.
        where: a new run makes its directory, or what a resumed run goes on from, in its own.
        progress: shown the stages.
        quiet: print nothing.
        stay: if drives, metrics and page shall stay until the process is interrupted, which is then the normal end.
        plan_only: end when it is decided which devices train; the run can be resumed.

    Raises:
        CsdError: something is missing, or no device is left.
        KeyboardInterrupt: the user ended it.
    """
    name = request.config.name
    if isinstance(where, NewRun):
        check_writable(where.runs)
    with array_folder(paths.arrays, name) as folder, contextlib.ExitStack() as stack:
        member = stack.enter_context(
            joined(
                request.server_group,
                name,
                lambda group: alike_sha256(request.job, request.trajectory_sha256(group.whole)),
                paths.runtime,
            )
        )
        group = None if member is None else member.server_group
        among = ("", 0) if group is None else (group.server, len(group.config.names))
        facts = describe_run(request.config, request.job, *among)
        history = History(facts)
        exporter = stack.enter_context(_make_exporter(request, facts, history))
        if member is not None:
            publish_exporter(member, exporter.page_address)
        engine = stack.enter_context(contextlib.closing(make_engine(request.config, paths)))
        options = _Options(paths.control(name), progress, quiet, stay, plan_only)
        run = _Run(request, folder, engine, exporter, history, where, options)
        run.member = member
        stack.enter_context(rare_collections())
        stack.callback(run.close)
        return run.train(paths)


def _import_ahead() -> None:
    """Import beside the start of drives what is needed later."""
    with contextlib.suppress(Exception):  # whoever needs it is told
        importlib.import_module("host.monitoring.report.report_page")


def _make_exporter(request: RunRequest, facts: RunFacts, history: History) -> Exporter:
    """Return what serves the run's metrics and its page."""
    host = request.config.host
    metrics = MetricsState(facts, describe_tables(request.job, request.expected, request.sync))
    return Exporter(metrics, host.metrics_port, host.address, PageApp(history, metrics.devices), host.names)


class _Run:
    """One run while its array is up.

    Attributes:
        member: of servers that train together.
    """

    def __init__(
        self,
        request: RunRequest,
        folder: Path,
        engine: Engine,
        exporter: Exporter,
        history: History,
        where: NewRun | ResumePoint,
        options: _Options,
    ) -> None:
        self._request, self._folder, self._engine, self._exporter = request, folder, engine, exporter
        self._where, self._options = where, options
        self.member: ServerMembership | None = None
        self._reported = False
        past = where if isinstance(where, ResumePoint) else None
        run_log = RunLog(past.last_round if past is not None else 0)
        self._trackers = load_trackers(request.job.track, request.job.run_name, request.settings)
        listeners = [exporter.state, history, run_log, *self._trackers]
        self._recorder = Recorder(listeners, request.sha256, request.job.checkpoint.every, past)
        self._failures = Failures(request.job.on_failure == CONTINUE, self._show_failure, self._recorder.set_failures)
        self._machines: list[SamplerMachine] = []
        if past is not None:
            self._failures.restore(past.failures)

    def close(self) -> None:
        """Write the report, if that is still to do, and hand the run's files to its trackers."""
        self.report()
        with INTERRUPTS.deferred():
            for tracker in self._trackers:
                tracker.close()

    def report(self) -> None:
        """Write the report once, if the run has got as far as to have a directory."""
        if (directory := self._recorder.directory) is not None and not self._reported:
            self._reported = True
            where, metrics = self._where, self._exporter.render()
            if isinstance(where, NewRun) and not where.report:
                write_result(directory.path / METRICS_FILE, metrics)
            else:
                report_run(directory.path, self._options.progress, metrics)

    def train(self, paths: Paths) -> Summary:
        """Train on the array that is up, else on a new one, which ends with the run."""
        request, folder, state = self._request, self._folder, ArrayState.load(self._folder)
        samplers = 1 if request.sync is None else request.config.samplers  # a federated round is counted on one
        counting = samplers if request.config.sampled else 0
        where = paths, self._options.progress, self._recorder.add_event
        self._machines = [SamplerMachine(request.array, number, *where) for number in range(counting)]
        running = list_running(state, paths) if state is not None else []
        if state is not None and running:
            check_same(request.array, state)
            given = {node.name for node in request.config.list_nodes() if node.data is None}
            written = {each.name: each.manifest_sha256 for each in state.devices if each.name in given}
            check_shards(written, folder / DEVICES)
            remedy = f"it was chosen by csd-emu up; csd-emu down {request.config.name} and up again choose another"
            check_port(state.address, state.port, remedy)
            return INTERRUPTS.run(self._beside_machines(self._on_array_that_is_up(state, running)))
        check_port(request.config.host.address, request.config.host.port)
        try:
            clear_array(self._engine, request.config.name, folder)
            self._engine.prepare(self._options.progress)
            return INTERRUPTS.run(self._beside_machines(self._on_new_array()))
        finally:
            with INTERRUPTS.deferred():
                clear_array(self._engine, request.config.name, folder)

    async def _beside_machines(self, run: Coroutine[Any, Any, Summary]) -> Summary:
        """Run beside the machines that count steps, if any; write the report while they end, which takes a second."""
        if isinstance(self._where, ResumePoint) or self._where.report:
            threading.Thread(target=_import_ahead).start()
        async with contextlib.AsyncExitStack() as box:
            for machine in self._machines:
                await box.enter_async_context(machine)
            summary, reporting = await run, asyncio.create_task(asyncio.to_thread(self.report))
        await reporting
        return summary

    async def _on_array_that_is_up(self, state: ArrayState, running: Sequence[str]) -> Summary:
        """Train on devices that stay up afterwards; those that no longer run count as lost."""
        self._options.progress.stage(f"wait for {len(running)} drives to dial in")
        for device in state.devices:
            if device.name not in running:
                self._recorder.add_event(device.name, EventKind.LOST, "before the run began")
        self._recorder.start_booting()
        async with attach_array(state, running, self._folder, self._recorder.add_event) as fleet:
            await self._plan_in_place(state)
            return await self._train_and_stay(fleet, {})

    async def _on_new_array(self) -> Summary:
        """Start the devices and train; the caller ends them."""
        count = len(self._request.config.list_devices())
        self._options.progress.stage(f"start {count} drives ({self._request.config.engine_label})")
        self._recorder.start_booting()
        async with contextlib.AsyncExitStack() as box:
            started = await start_array(self._request.array, self._folder, self._engine, box, self._recorder.add_event)
            for device, why in started.lost.items():
                self._recorder.add_event(device, EventKind.LOST, why)
            await self._plan_in_place(started.state)
            return await self._train_and_stay(started.fleet, started.times.device_seconds)

    async def _plan_in_place(self, state: ArrayState) -> None:
        """Plan the run for the records that its drives say they hold in place."""
        own = {device.name for device in self._request.config.list_devices() if device.data is not None}
        told = {each.name: (each.samples, each.manifest_sha256) for each in state.devices if each.name in own}
        self._request = await asyncio.to_thread(prepare_in_place, self._request, told)

    async def _train_and_stay(self, fleet: Fleet, boot_seconds: Mapping[str, float]) -> Summary:
        summary, stay = await self._record_and_train(fleet, boot_seconds), self._options.stay
        if stay is not None and self._recorder.directory is not None:
            self._recorder.directory.close()  # from here on events are for Prometheus and the page alone
            await asyncio.to_thread(self.report)
            stay.show(summary)
            await INTERRUPTS.wait(*([] if stay.until is None else [stay.until()]))
            self._recorder.end()
        return summary

    async def _record_and_train(self, fleet: Fleet, boot_seconds: Mapping[str, float]) -> Summary:
        self._options.progress.stage("")
        if not self._options.quiet:
            console.print(f"metrics for Prometheus: {self._exporter.address}")
            stays = "" if self._options.stay is not None else " (ends with the run; --stay keeps it)"
            console.print(f"live page: {self._exporter.page_address}{stays}")
            if (hint := self._request.table_hint) is not None:
                console.print(hint, style="yellow", markup=False)
        if isinstance(self._where, ResumePoint):
            return await self._train_live(fleet, boot_seconds, self._where.directory)
        with RunDirectory.create(self._where.runs, self._request.job.run_name) as directory:
            self._recorder.open(directory)
            self._where.opened(directory.path, self._exporter.page_address)
            self._write_configuration(fleet, directory)
            return await self._train_live(fleet, boot_seconds, directory)

    async def _train_live(self, fleet: Fleet, boot_seconds: Mapping[str, float], directory: RunDirectory) -> Summary:
        """Train while `csd-emu top` can find the run."""
        request, options = self._request, self._options
        past = self._where.state if isinstance(self._where, ResumePoint) else None
        live = LiveRun.of_this_process(request.config.name, self._exporter.address, directory.path)
        with announce(self._folder, live):
            run = TrainingRun(
                request, fleet, self._engine, self._recorder, self._failures, directory, options.plan_only
            )
            start = RunStart(run.clock, str(directory.path), run.list_devices, boot_seconds)
            self._recorder.begin(start, run.accountant)
            await run.train(self.member, self._machines, options.control, past, options.quiet)
            return await self._finish(run, directory)

    def _write_configuration(self, fleet: Fleet, directory: RunDirectory) -> None:
        request, job = self._request, self._request.portable_job
        for name, source in request.user_files.items():
            directory.write_user_file(name, source)
        facts = {device: session.hello.facts for device, session in fleet.sessions().items()}
        server_group = None if request.server_group is None else request.server_group.dump()
        sources = hash_sources(request.user_files)
        directory.write_configuration(
            request.config, job, facts, request.profiles, server_group, sources, request.dealt.held
        )

    def _show_failure(self, failure: Failure) -> None:
        self._recorder.add_failure(failure)
        print_failure(failure)

    async def _finish(self, run: TrainingRun, directory: RunDirectory) -> Summary:
        """Write down how the run ended, and show it until its last metrics are scraped."""
        request, recorder, training = self._request, self._recorder, run.training
        if training is not None and training.cut_short:
            # The round that ended early stands in the records; what it lacks is in one more.
            job = request.portable_job
            directory.write_job(job.model_copy(update={"rounds": job.rounds + 1}))
        weights = request.evaluator.initial_weights() if training is None else training.weights
        summary = finish_run(request, directory, weights, recorder.wall_seconds, self._failures.list())
        run.check_planned()
        recorder.end(stays=self._options.stay is not None)
        if self._options.stay is None:
            await self._exporter.wait_for_scrapers()
        return summary


def finish_run(
    request: RunRequest,
    directory: RunDirectory,
    weights: Mapping[str, Array],
    wall_seconds: float,
    failures: Sequence[Failure] = (),
) -> Summary:
    """Write down how a run ended: timeline, slices of overlapping steps, final weights, summary.

    One in which code of the user's failed has not succeeded, and may have no round.
    """
    plan = read_plan(directory.path) if request.planning is not None else None
    job, target = request.job, request.job.target
    summary = summarise(
        directory.read_rounds(),
        array=request.config.name,
        engine=request.config.engine_label,
        model=job.model,
        target_accuracy=target.accuracy if target is not None else None,
        reached=False,
        wall_seconds=wall_seconds,
        run_directory=str(directory.path),
        seed=job.seed,
        chosen=None if plan is None else plan.chosen.name,
        mode=job.mode,
        core_model=request.config.core_model,
        failures=list(failures),
        refusals=directory.read_refusals(),
    )
    if not failures and (target is None or (summary.accuracy is not None and summary.accuracy >= target.accuracy)):
        summary = msgspec.structs.replace(summary, reached=True)
    write_trace(directory.path, directory.read_rounds(), request.config.name)
    if slices := directory.read_slices():
        write_slices(directory.path, slices, request.config.name)
    directory.finish(summary, weights)
    return summary


def report_run(directory: Path, progress: Progress, metrics: bytes | None = None) -> None:
    """Write the report of what there is, and the last metrics; a failure is said and loses nothing else of the run."""
    with INTERRUPTS.deferred():
        progress.stage(f"write {directory / REPORT_FILE}")
        try:
            if metrics is not None:
                write_result(directory / METRICS_FILE, metrics)
            from host.monitoring.report.report_page import (
                write_report,  # matplotlib's import takes longer than a start may
            )

            write_report(directory, trusted=True)
        except Exception as error:  # whatever it is, the run is done and its records are safe
            progress.stage("")
            errors.print(f"csd-emu: no report was written: {error}", style="yellow", markup=False)
        progress.stage("")
