"""`csd-emu run`: an array comes up (or is up already), a job trains on it, everything is cleaned up."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from csd_emu.array import ArrayConfig
from csd_emu.calibration import CalibrationStore
from csd_emu.engines import Engine, make_engine
from csd_emu.paths import Paths
from csd_emu.profiles import get_profile
from csd_emu.progress import Progress
from firmware_agent.exchange import Array
from firmware_agent.models import ModelSpec
from host.accounting import make_accountant
from host.array_state import ArrayState, array_folder
from host.checkpoint import job_sha256
from host.console import RoundTable, console
from host.datasets import Dataset, load_dataset
from host.device_time import StepModel, find_models
from host.evaluation import Evaluator
from host.exporter import Exporter
from host.federated import FederatedTraining
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
from host.recorder import Past, Recorder
from host.records import RoundRecord, Summary, What, summarise
from host.rounds import RoundExchange, job_frame
from host.run_directory import RunDirectory, check_writable
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

    @property
    def portable_job(self) -> JobConfig:
        """The job as it can be run from a folder that holds the model's file under its own name."""
        if self.spec.source is None:
            return self.job
        path, _, function = self.job.model.partition(":")
        return self.job.model_copy(update={"model": f"{Path(path).name}:{function}"})

    @property
    def profiles(self) -> dict[str, dict[str, Any]]:
        """The profiles of drives and host, with all their figures and sources."""
        names = {device.profile for device in self.config.list_devices()} | {self.config.host.profile}
        return {name: asdict(get_profile(name)) for name in sorted(names)}

    @property
    def sha256(self) -> str:
        """Hash of all that decides the run's trajectory."""
        return job_sha256(self.config, self.portable_job, self.spec.source, [self.profiles, self.models])


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


def run_job(
    request: RunRequest, paths: Paths, runs: Path, progress: Progress, quiet: bool, past: Past | None = None
) -> Summary:
    """Run the job and return its summary; whatever was started here has ended when this returns or raises.

    Args:
        request: what to run.
        paths: csd-emu's folders.
        runs: where a new run makes its directory.
        progress: shown the stages.
        quiet: print nothing.
        past: of a resumed run, which goes on in its own directory.

    Raises:
        CsdError: something is missing, or no device is left.
        KeyboardInterrupt: the user ended it.
    """
    name = request.config.name
    if past is None:
        check_writable(runs)
    with array_folder(paths.arrays, name) as folder, contextlib.ExitStack() as stack:
        exporter = stack.enter_context(Exporter(request.config.host.metrics_port))
        engine = stack.enter_context(contextlib.closing(make_engine(request.config, paths)))
        run = _Run(request, folder, runs, engine, progress, quiet, exporter, past)
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
            return INTERRUPTS.run(run.on_new_array())
        finally:
            with INTERRUPTS.deferred():
                clear_array(engine, name, folder)


class _Run:
    """One run while its array is up."""

    def __init__(
        self,
        request: RunRequest,
        folder: Path,
        runs: Path,
        engine: Engine,
        progress: Progress,
        quiet: bool,
        exporter: Exporter,
        past: Past | None,
    ) -> None:
        self._request, self._folder, self._runs, self._engine = request, folder, runs, engine
        self._progress, self._quiet, self._exporter, self._past = progress, quiet, exporter, past
        self._recorder = Recorder(exporter, request.sha256, request.job.checkpoint.every, past)

    async def on_array_that_is_up(self, state: ArrayState, running: Sequence[str]) -> Summary:
        """Train on devices that stay up afterwards; those that no longer run count as lost."""
        self._progress.stage(f"wait for {len(running)} drives to dial in")
        for device in state.devices:
            if device.name not in running:
                self._recorder.add_event(device.name, What.LOST, "before the run began")
        async with attach_array(state, running, self._folder, self._recorder.add_event) as fleet:
            return await self._record_and_train(fleet)

    async def on_new_array(self) -> Summary:
        """Start the devices and train; the caller ends them."""
        count = len(self._request.config.list_devices())
        self._progress.stage(f"start {count} drives ({self._request.config.engine})")
        async with contextlib.AsyncExitStack() as box:
            started = await start_array(self._request.array, self._folder, self._engine, box, self._recorder.add_event)
            return await self._record_and_train(started.fleet)

    async def _record_and_train(self, fleet: Fleet) -> Summary:
        self._progress.stage("")
        if not self._quiet:
            console.print(f"metrics for Prometheus: {self._exporter.address}")
        if self._past is not None:
            return await self._train(fleet, self._past.directory)
        with RunDirectory.create(self._runs, self._request.config.name) as directory:
            self._recorder.open(directory)
            self._write_configuration(fleet, directory)
            return await self._train(fleet, directory)

    def _write_configuration(self, fleet: Fleet, directory: RunDirectory) -> None:
        request, job = self._request, self._request.portable_job
        if request.spec.source is not None:
            directory.write_model(job.model.partition(":")[0], request.spec.source)
        facts = {device: session.hello.facts for device, session in fleet.sessions().items()}
        directory.write_configuration(request.config, job, facts, request.profiles)

    async def _train(self, fleet: Fleet, directory: RunDirectory) -> Summary:
        request, recorder = self._request, self._recorder
        accountant = make_accountant(request.config, request.models)
        recorder.follow(accountant)
        clocks = {accountant.time.clock(name, session.hello.clock) for name, session in fleet.sessions().items()}
        frame = job_frame(request.job, request.spec, request.dataset.image_scale)
        exchange = RoundExchange(request.job, frame, fleet, self._list_existing, recorder.add_event)
        names = [device.name for device in request.config.list_devices()]
        training = FederatedTraining(request.job, names, exchange, accountant, request.evaluator, recorder.add_event)
        if self._past is not None and self._past.state is not None:
            training.restore(self._past.state)
        with RoundTable("+".join(sorted(clocks)), self._quiet) as table:
            while not training.done:
                record = await training.run_round()
                await recorder.add_round(record, training)
                table.add(record)
        return finish_run(request, directory, recorder.rounds, training.weights, recorder.wall_seconds)

    def _list_existing(self) -> Collection[str]:
        return self._engine.list_devices(self._request.config.name)


def finish_run(
    request: RunRequest,
    directory: RunDirectory,
    rounds: list[RoundRecord],
    weights: Mapping[str, Array],
    wall_seconds: float,
) -> Summary:
    """Write down how a run ended: timeline, final weights, summary."""
    job, target = request.job, request.job.target
    summary = summarise(
        rounds,
        array=request.config.name,
        engine=request.config.engine,
        model=job.model,
        target_accuracy=target.accuracy if target is not None else None,
        reached=target is None or rounds[-1].accuracy >= target.accuracy,
        wall_seconds=wall_seconds,
        run_directory=str(directory.path),
        seed=job.seed,
    )
    write_trace(directory.path, rounds, request.config.name)
    directory.finish(summary, weights)
    return summary
