"""`csd-emu run`: an array comes up (or is up already), a job trains on it, everything is cleaned up."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from csd_emu.array import ArrayConfig
from csd_emu.calibration import CalibrationStore
from csd_emu.engines import Engine, make_engine
from csd_emu.paths import Paths
from csd_emu.profiles import get_profile
from csd_emu.progress import Progress
from firmware_agent.models import ModelSpec
from host.accounting import Accountant, make_accountant
from host.array_state import ArrayState, array_folder
from host.console import RoundTable, console, errors
from host.control import ControlServer
from host.datasets import Dataset, load_dataset
from host.device_time import StepModel, find_models
from host.evaluation import Evaluator
from host.faults import RunFaults
from host.federated import FederatedTraining, job_frame
from host.fleet import Fleet, check_port
from host.interrupts import INTERRUPTS
from host.job import JobConfig
from host.lifecycle import (
    DEVICES,
    ArrayRequest,
    attach_array,
    check_same,
    clear_array,
    list_running,
    start_array,
)
from host.live import LiveRun, announce
from host.metrics.counting import DeviceFacts
from host.metrics.facts import describe_devices, describe_run
from host.metrics.server import Exporter
from host.metrics.state import MetricsState
from host.records import EventRecord, RoundRecord, Summary, What, summarise
from host.run_directory import REPORT, RunDirectory, check_writable
from host.shards import check_shards, deal_out
from host.trace import write_trace


@dataclass(frozen=True)
class RunRequest:
    """A run, read and checked: nothing in it can fail for being misspelt."""

    config: ArrayConfig
    job: JobConfig
    spec: ModelSpec
    dataset: Dataset
    evaluator: Evaluator
    models: Mapping[str, StepModel]

    @property
    def array(self) -> ArrayRequest:
        """What must be up for this run."""
        return ArrayRequest(self.config, self.job.data, self.job.seed)


def check_run(config: ArrayConfig, job: JobConfig, spec: ModelSpec) -> RunRequest:
    """Return the run if model, data and array fit together; nothing is started.

    Raises:
        ConfigurationError: they do not.
    """
    dataset = load_dataset(job.data.source, job.seed)
    deal_out(dataset, job.data, len(config.list_devices()), job.seed)
    channels, height, width = dataset.images.shape[1:]
    models = find_models(config, spec, (channels, height, width), CalibrationStore(Paths.default().calibration))
    return RunRequest(config, job, spec, dataset, Evaluator(spec, dataset, job.seed), models)


def run_job(request: RunRequest, paths: Paths, runs: Path, progress: Progress, quiet: bool) -> Summary:
    """Run the job and return its summary; whatever was started here has ended when this returns or raises.

    Raises:
        CsdError: something is missing, or no device is left.
        KeyboardInterrupt: the user ended it.
    """
    name = request.config.name
    check_writable(runs)
    with array_folder(paths.arrays, name) as folder, contextlib.ExitStack() as stack:
        metrics = MetricsState(describe_run(request.config, request.job))
        exporter = stack.enter_context(Exporter(metrics, request.config.host.metrics_port))
        run = _Run(request, folder, paths.control(name), runs, progress, quiet, exporter)
        stack.callback(run.report)  # when nothing runs any more, however the run has ended
        engine = stack.enter_context(contextlib.closing(make_engine(request.config, paths)))
        state = ArrayState.load(folder)
        running = list_running(state, paths) if state is not None else []
        if state is not None and running:
            check_same(request.array, state)
            check_shards({device.name: device.manifest_sha256 for device in state.devices}, folder / DEVICES)
            check_port(state.port, f"it was chosen by csd-emu up; csd-emu down {name} and up again choose another")
            return INTERRUPTS.run(run.on_array_that_is_up(state, running))
        check_port(request.config.host.port)
        try:
            clear_array(engine, name, folder)
            engine.prepare(progress)
            return INTERRUPTS.run(run.on_new_array(engine))
        finally:
            with INTERRUPTS.deferred():
                clear_array(engine, name, folder)


class _Run:
    """One run while its array is up."""

    def __init__(
        self,
        request: RunRequest,
        folder: Path,
        control: Path,
        runs: Path,
        progress: Progress,
        quiet: bool,
        exporter: Exporter,
    ) -> None:
        self._request, self._folder, self._control, self._runs = request, folder, control, runs
        self._progress, self._quiet, self._exporter = progress, quiet, exporter
        self._metrics = exporter.state
        self._begin = time.monotonic()
        self._directory: RunDirectory | None = None
        self._accountant: Accountant | None = None
        self._early: list[EventRecord] = []

    async def on_array_that_is_up(self, state: ArrayState, running: Sequence[str]) -> Summary:
        """Train on devices that stay up afterwards; those that no longer run count as lost."""
        self._progress.stage(f"wait for {len(running)} drives to dial in")
        for device in state.devices:
            if device.name not in running:
                self._on_event(device.name, What.LOST, "before the run began")
        self._metrics.start_booting()
        async with attach_array(state, running, self._folder, self._on_event) as fleet:
            return await self._record_and_train(state, fleet)

    async def on_new_array(self, engine: Engine) -> Summary:
        """Start the devices and train; the caller ends them."""
        count = len(self._request.config.list_devices())
        self._progress.stage(f"start {count} drives ({self._request.config.engine})")
        self._metrics.start_booting()
        async with contextlib.AsyncExitStack() as box:
            started = await start_array(self._request.array, self._folder, engine, box, self._on_event)
            self._metrics.set_boot_seconds(started.times.device_seconds)
            return await self._record_and_train(started.state, started.fleet)

    async def _record_and_train(self, state: ArrayState, fleet: Fleet) -> Summary:
        self._progress.stage("")
        if not self._quiet:
            console.print(f"metrics for Prometheus: {self._exporter.address}")
        name = self._request.config.name
        with (
            RunDirectory(self._runs, name) as directory,
            announce(self._folder, LiveRun.of_this_process(name, self._exporter.address, directory.path)),
        ):
            self._directory = directory
            for event in self._early:
                directory.append(event)
            facts = {device: session.hello.facts for device, session in fleet.sessions().items()}
            names = {device.profile for device in state.devices} | {self._request.config.host.profile}
            profiles = {name: asdict(get_profile(name)) for name in sorted(names)}
            directory.write_configuration(self._request.config, self._request.job, facts, profiles)
            if self._request.spec.source is not None:
                directory.write_model(self._request.spec.name, self._request.spec.source)
            return await self._train(state, fleet, directory)

    async def _train(self, state: ArrayState, fleet: Fleet, directory: RunDirectory) -> Summary:
        request = self._request
        accountant = make_accountant(request.config, request.models)
        self._accountant = accountant
        clocks = {accountant.time.clock(name, session.hello.clock) for name, session in fleet.sessions().items()}
        clock = "+".join(sorted(clocks))
        self._metrics.begin(self._describe(fleet, accountant), clock)
        frame = job_frame(request.job, request.spec, request.dataset.image_scale)
        names = [device.name for device in state.devices]
        faults = RunFaults(fleet, names, accountant.time, self._on_event)
        control = ControlServer(self._control, faults.handle)
        with RoundTable(clock, self._quiet) as table:

            def on_round(record: RoundRecord) -> None:
                directory.append(record)
                self._metrics.describe(self._describe(fleet, accountant), clock)
                self._metrics.add_round(record)
                table.add(record)

            training = FederatedTraining(
                request.job,
                frame,
                fleet,
                names,
                accountant,
                request.evaluator,
                on_round,
                self._on_event,
                faults.before_task,
            )
            async with control, faults:
                rounds = await training.run()
        summary = self._summary(rounds, directory)
        directory.finish(summary, training.weights)
        write_trace(directory.path, rounds, request.config.name)
        self._metrics.end()
        await self._exporter.wait_for_scrapers()
        return summary

    def _describe(self, fleet: Fleet, accountant: Accountant) -> list[DeviceFacts]:
        hellos = {device: session.hello for device, session in fleet.sessions().items()}
        return describe_devices(self._request.config, accountant.time, hellos)

    def report(self) -> None:
        """Write the report of what there is; a failure is said and loses nothing else of the run."""
        if self._directory is None:
            return
        with INTERRUPTS.deferred():
            self._progress.stage(f"write {self._directory.path / REPORT}")
            try:
                from host.report.page import write_report  # matplotlib's import takes longer than a start may

                write_report(self._directory.path)
            except Exception as error:  # whatever it is, the run is done and its records are safe
                self._progress.stage("")
                errors.print(f"csd-emu: no report was written: {error}", style="yellow", markup=False)
            self._progress.stage("")

    def _summary(self, rounds: list[RoundRecord], directory: RunDirectory) -> Summary:
        job = self._request.job
        target = job.target.accuracy if job.target else None
        return summarise(
            rounds,
            array=self._request.config.name,
            engine=self._request.config.engine,
            model=job.model,
            target_accuracy=target,
            reached=target is None or rounds[-1].accuracy >= target,
            wall_seconds=time.monotonic() - self._begin,
            run_directory=str(directory.path),
            seed=job.seed,
        )

    def _on_event(self, device: str, what: What, detail: str) -> None:
        array_seconds = self._accountant.array_seconds if self._accountant is not None else 0.0
        event = EventRecord(device, what, detail, time.monotonic() - self._begin, array_seconds)
        self._metrics.add_event(event)
        if self._directory is None:
            self._early.append(event)
        elif not self._directory.closed:
            self._directory.append(event)
