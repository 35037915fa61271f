"""`csd-emu validate`: everything that can be checked without starting anything, or running what a file names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from csd_emu.config.array_file import QEMU
from csd_emu.config.engine_names import ArrayChanges
from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ModelError
from firmware_agent.common.imports import check_source
from host.config.array_files import read_array
from host.config.job_file import JobConfig, find_model, read_job
from host.config.plugins.plugin_section import UserSection
from host.config.resolve import check_plugins, resolve_run
from host.core.partition import HeldRecords
from host.core.readers.source_names import is_code


class ValidationReport(msgspec.Struct, frozen=True):
    """`csd-emu validate`: the configuration as resolved; `domains` holds the domain XML of each device (qemu).

    `engine` is what the drives run on, several joined by ``+``: on the clock `sampled` processes, whatever the array
    file's engine is. `built` says whether the job's model, strategy and tuner were imported and tried; then `records`
    is what each drive would hold.
    """

    array: dict[str, Any]
    job: dict[str, Any] | None
    devices: list[str]
    domains: dict[str, str]
    built: bool = False
    engine: str = ""
    records: HeldRecords | None = None


def validate_files(
    array_path: Path, job_path: Path | None, changes: ArrayChanges, dry_run: bool, paths: Paths, build: bool = False
) -> ValidationReport:
    """Check the files; with `dry_run`, also say what libvirt would be given.

    The user's own model, strategy or tuner is imported and tried with `build` alone; otherwise its name is checked, and
    that its file can be parsed.

    Raises:
        ConfigurationError: a file breaks a rule.
    """
    config = read_array(array_path, changes)
    job, records = _read_job(job_path, array_path, changes, build) if job_path is not None else (None, None)
    domains: dict[str, str] = {}
    if dry_run and QEMU in config.engines:
        from csd_emu.engines.qemu.qemu_engine import describe_domains

        domains = describe_domains(config, paths)
    return ValidationReport(
        array=config.model_dump(mode="json"),
        job=job.model_dump(mode="json") if job is not None else None,
        devices=[device.name for device in config.list_devices()],
        domains=domains,
        built=records is not None,
        engine=config.engine_label,
        records=records,
    )


def _read_job(
    job_path: Path, array_path: Path, changes: ArrayChanges, build: bool
) -> tuple[JobConfig, HeldRecords | None]:
    """Return the job, and what each drive would hold if its model was built and its records dealt out."""
    job = read_job(job_path)
    sections = [job.strategy, job.tuner, job.loss, job.client, job.data.partition.own, job.own_optimizer, job.schedule]
    own = (
        ":" in job.model
        or is_code(job.data.source)
        or any(isinstance(each, UserSection) for each in [*sections, job.collate, *job.augment, *(job.metrics or ())])
    )
    if build or not own:
        from host.app.prepare import prepare_run  # torch: whoever builds nothing has no need of it

        request = prepare_run(resolve_run(job_path, array_path, changes))
        return request.job, request.dealt.held
    spec = find_model(job, str(job_path), job_path.parent)
    where, _, function = job.model.partition(":")
    try:
        if spec.source is not None:
            check_source(spec.source, where, function)
    except ValueError as error:
        raise ModelError(f"{job_path}: model {job.model!r}: cannot be imported: {error}") from error
    check_plugins(job, job_path)
    return job, None
