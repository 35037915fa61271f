"""`csd-emu validate`: everything that can be checked without starting anything."""

from __future__ import annotations

from pathlib import Path

from csd_emu.array import QEMU
from csd_emu.paths import Paths
from host.outputs import ValidationReport
from host.requests import read_array, read_run


def validate_files(
    array_path: Path, job_path: Path | None, engine: str | None, dry_run: bool, paths: Paths
) -> ValidationReport:
    """Check the files; with `dry_run`, also say what libvirt would be given.

    Raises:
        ConfigurationError: a file breaks a rule.
    """
    config = read_array(array_path, engine)
    job = read_run(job_path, array_path, engine).job if job_path is not None else None
    domains: dict[str, str] = {}
    if dry_run and QEMU in config.engines:
        from csd_emu.engines.qemu import describe_domains

        domains = describe_domains(config, paths)
    return ValidationReport(
        array=config.model_dump(mode="json"),
        job=job.model_dump(mode="json") if job is not None else None,
        devices=[device.name for device in config.list_devices()],
        domains=domains,
    )
