"""The container of the host: it waits for the array, trains, and then stays with metrics and page."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import yaml

from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_emu.util.yaml_files import load_yaml
from firmware_agent.common.errors import CheckpointError, ConfigurationError, EnvironmentUnfit
from host.app.prepare import RunRequest, prepare_run
from host.app.resume import resume_run
from host.app.run_job import NewRun, Stay, run_job
from host.app.stack.stack_settings import StackSettings
from host.config.overrides import given_keys
from host.config.resolve import JobChanges, resolve_run
from host.core.console import console
from host.core.owned_files import write_whole
from host.core.summary import Summary
from host.fleet.array_state import is_present
from host.monitoring.run_directory import ARRAY_FILE, JOB_FILE, SUMMARY_FILE

_POLL_SECONDS, _LOOK_SECONDS = 0.5, 2.0
_REMEDY = "free space, or make the volume writable"


def run_host(settings: StackSettings, paths: Paths, progress: Progress, on_done: Callable[[Summary], None]) -> None:
    """Train the job on the array that the drives' container keeps up, and stay until interrupted or that one ends.

    A run of this job that was ended before it was done goes on; otherwise a new one begins.

    Raises:
        CsdError: something is missing, or no drive is left.
    """
    request = _read(settings, paths)
    if settings.secrets.is_dir():
        ensure_secret(settings.secrets, GRAFANA)
    progress.stage("wait for the drives")
    _wait_for_array(request.config.name, paths, Deadline(settings.start_seconds))
    progress.stage("")
    stay = Stay(on_done, partial(_watch_presence, request.config.name, paths))
    directory = find_unfinished(settings.runs, request)
    if directory is None or not _resume(directory, paths, progress, stay):
        run_job(request, paths, NewRun(settings.runs), progress, quiet=False, stay=stay)


def find_unfinished(runs: Path, request: RunRequest) -> Path | None:
    """Return the newest run directory if its run was not done and had this very job and array."""
    made = sorted(runs.glob(f"*/{JOB_FILE}"), key=lambda path: path.stat().st_mtime_ns)
    if not made or (made[-1].parent / SUMMARY_FILE).exists():
        return None
    newest = made[-1].parent
    wanted = {
        ARRAY_FILE: request.config.model_dump(mode="json"),
        JOB_FILE: request.portable_job.model_dump(mode="json"),
    }
    try:
        same = all(load_yaml(newest / name) == content for name, content in wanted.items())
        if request.spec.source is not None:
            model = newest / request.portable_job.model.partition(":")[0]
            same = same and model.read_text(encoding="utf-8") == request.spec.source
    except (OSError, ValueError, ConfigurationError):
        return None
    return newest if same else None


def _resume(directory: Path, paths: Paths, progress: Progress, stay: Stay) -> bool:
    """Go on with the run in `directory`, and return whether it did and stayed: one that lacks but its end does not."""
    stayed = False

    def show(summary: Summary) -> None:
        nonlocal stayed
        stayed = True
        stay.show(summary)

    try:
        resume_run(directory, None, paths, progress, quiet=False, stay=replace(stay, show=show))
    except (CheckpointError, ConfigurationError) as error:
        console.print(f"{directory} cannot go on ({error}); a new run begins")
    return stayed


def _read(settings: StackSettings, paths: Paths) -> RunRequest:
    """Read job and array, the latter as if from a file of the user's."""
    array = paths.state / "stack.yaml"
    write_whole(array, yaml.safe_dump(settings.array().model_dump(mode="json")).encode(), _REMEDY, folder=True)
    return prepare_run(resolve_run(settings.job_file, array, changes=JobChanges(given_keys({"tuner": settings.tuner}))))


async def _watch_presence(name: str, paths: Paths) -> None:
    """Fail when no container keeps the array up any more: whoever starts it again finds it free then.

    Raises:
        EnvironmentUnfit: none does.
    """
    while True:
        if not is_present(paths.presence(name)):
            raise EnvironmentUnfit(
                "the container that keeps the drives up has ended; this one ends too, to wait for the next"
            )
        await asyncio.sleep(_LOOK_SECONDS)


def _wait_for_array(name: str, paths: Paths, deadline: Deadline) -> None:
    """Wait until a container keeps the array up: only then has every drive said hello.

    Raises:
        EnvironmentUnfit: none does by the deadline.
    """
    while not is_present(paths.presence(name)):
        if deadline.expired:
            raise EnvironmentUnfit(
                f"no container keeps the array up after {deadline.seconds:.0f} s; see docker-compose logs drives"
            )
        threading.Event().wait(_POLL_SECONDS)


GRAFANA = "grafana-admin-password"
_BYTES = 24


def ensure_secret(folder: Path, name: str) -> Path:
    """Return the file of a secret; it is made if it is not there.

    Others may read it: its folder is a volume of its own, which only those containers have that need it.

    Raises:
        EnvironmentUnfit: it cannot be written.
    """
    if not (path := folder / name).exists():
        write_whole(path, secrets.token_urlsafe(_BYTES).encode(), _REMEDY, mode=0o444)
    return path
