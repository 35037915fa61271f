"""Measurement of a calibration table that a run's model lacks, before the run."""

from __future__ import annotations

from dataclasses import replace

from csd_emu.config.array_file import NATIVE, ArrayConfig
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.shipped_code import ShippedCode
from host.app.calibration_measurement import calibrate
from host.app.calibration_report import keep_table
from host.app.load_inputs import load_job_dataset
from host.app.prepare import find_tables
from host.config.calibration_request import make_request
from host.config.job_file import JobConfig
from host.core.evaluation import Evaluator
from host.core.table_plan import plan_table


def measure_missing(config: ArrayConfig, job: JobConfig, spec: ShippedCode, paths: Paths, progress: Progress) -> None:
    """Measure the table of a job's model on a virtual machine, and keep it; nothing is done where there is one.

    Without native drives whose seconds are modelled there is nothing to do either.

    Raises:
        EnvironmentUnfit: no virtual machine can be started here.
        ConfigurationError: the model takes no images.
        CsdError: it could not be measured.
    """
    native = {device.profile for device in config.list_devices() if device.engine == NATIVE}
    if not native or config.clock not in ("auto", "modelled"):
        return
    dataset, store = load_job_dataset(job), find_tables(config)
    if not dataset.are_images:
        raise ConfigurationError(
            f"calibrate: {spec.name} takes {' and '.join(dataset.input_fields)}, and tables are of models of images; "
            "leave it out"
        )
    shape = dataset.shape
    if all(store.find(spec, shape, profile) for profile in native):
        return
    batches, wall_seconds = plan_table(Evaluator(spec, dataset, job.seed).layers(), job.batch_size)
    progress.stage(f"measure {spec.name}, which no calibration table has: some {wall_seconds:.0f} s of wall time")
    request = make_request(spec, shape, batches, seed=job.seed, layers=job.mode == "sync")
    keep_table(calibrate, replace(request, cycles=config.core_model == "cycles"), None, paths, progress)
