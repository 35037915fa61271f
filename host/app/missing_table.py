"""Measurement of a job's own calibration table: that was asked for, or that a run lacks, before the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from csd_emu.config.array_file import NATIVE
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.shipped_code import ShippedCode
from host.app.calibration_measurement import calibrate
from host.app.calibration_report import keep_table
from host.app.load_inputs import choose_objective, load_job_dataset, step_frame, task_of
from host.app.prepare import find_tables
from host.config.calibration_request import CalibrationRequest, MeasuredJob, read_batches
from host.config.job_file import DataSection, JobConfig, load_job
from host.config.resolve import Plugins, ResolvedRun, load_plugins
from host.core.evaluation import Evaluator
from host.core.learning.initial_weights import ModelStart
from host.core.table_plan import plan_table


def measure_missing(run: ResolvedRun, paths: Paths, progress: Progress) -> None:
    """Measure the table of a run's job on a virtual machine, and keep it; nothing is done where there is one.

    Without native drives whose seconds are modelled there is nothing to do either.

    Raises:
        EnvironmentUnfit: no virtual machine can be started here.
        CsdError: it could not be measured.
    """
    config = run.whole
    native = {device.profile for device in config.list_devices() if device.engine == NATIVE}
    if not native or config.clock not in ("auto", "modelled"):
        return
    request, wall_seconds = job_request(run.job, run.spec, run.plugins)
    store = find_tables(config).of_task(request.key.task)
    if all(store.find(request.spec, request.input_shape, profile) for profile in native):
        return
    progress.stage(
        f"measure {request.spec.name}, which no calibration table has: some {wall_seconds:.0f} s of wall time"
    )
    keep_table(calibrate, replace(request, cycles=config.core_model == "cycles"), None, paths, progress)


def job_request(
    job: JobConfig, spec: ShippedCode, plugins: Plugins, batches: Sequence[int] | None = None
) -> tuple[CalibrationRequest, float]:
    """Return the measurement of a job's steps, and about how many seconds of wall time it takes.

    Args:
        job: what is trained.
        spec: its model.
        plugins: the user's own loss and optimiser.
        batches: batch sizes; None for the job's and a few below it, see `host.core.table_plan.plan_table`.

    Raises:
        ConfigurationError: the batch sizes make no table, or model, data and loss do not fit together.
    """
    dataset = load_job_dataset(job)
    objective = choose_objective(job, dataset, plugins)
    evaluator = Evaluator(
        *(spec, dataset, job.seed, objective),
        start=ModelStart(None, tuple(job.freeze), job.chosen_precision if job.client is None else None),
    )
    frame = step_frame(job, spec, objective, plugins.optimizer)
    planned, wall_seconds = plan_table(evaluator.layers(), job.batch_size)
    return CalibrationRequest(
        spec=spec,
        facts=evaluator.facts(),
        input_shape=dataset.shape,
        batches=planned if batches is None else tuple(sorted(batches)),
        seed=job.seed,
        layers=True,
        job=MeasuredJob(
            frame,
            DataSection(source=job.data.source, input=job.data.input),
            task_of(frame, dataset),
            layers=job.mode == "sync",
        ),
    ), wall_seconds


def read_job_request(path: Path, batches: str | None, others: Sequence[object]) -> CalibrationRequest:
    """Return the measurement of a job file's steps, in batches such as ``1,2,4``; see `job_request`.

    Raises:
        ConfigurationError: the file, or what it names, breaks a rule; or there are `others`, which it says itself.
    """
    if any(others):
        raise ConfigurationError(f"{path}: says what its model takes; leave --input, --classes and --argument out")
    job, spec = load_job(path)
    return job_request(job, spec, load_plugins(job, path), None if batches is None else read_batches(batches))[0]
