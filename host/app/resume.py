"""`csd-emu run --resume`: a run that was ended goes on in its own directory, on the same trajectory."""

from __future__ import annotations

import contextlib
from pathlib import Path

from csd_emu.engines import make_engine
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from firmware_agent.common.errors import CheckpointError, ConfigurationError
from host.app.prepare import RunRequest, prepare_run
from host.app.run_job import Stay, finish_run, report_run, run_job
from host.config.resolve import resolve_run
from host.core.console import console
from host.core.owned_files import check_owner, is_own
from host.core.summary import Summary
from host.fleet.array_state import ArrayState, array_folder
from host.fleet.lifecycle import clear_array, list_running
from host.monitoring.recorder import ResumePoint
from host.monitoring.run_directory import ARRAY_FILE, JOB_FILE, SERVER_GROUP_FILE, VERSIONS_FILE, RunDirectory
from host.training.run_sources import check_sources
from host.training.training_protocol import is_done


def resume_run(
    path: Path,
    engine: str | None,
    paths: Paths,
    progress: Progress,
    quiet: bool,
    stay: Stay | None = None,
    trusted: bool = False,
) -> Summary:
    """Go on with the run in the directory at `path`, and return the summary of all its rounds.

    A run that has finished is left as it is. One that was ended before its first checkpoint begins again, in place.

    Args:
        path: the run directory.
        engine: if given, must be the run's own: weights are the same to the bit on one engine alone.
        paths: csd-emu's folders.
        progress: shown the stages.
        quiet: print nothing.
        stay: as in `host.app.run_job.run_job`; a run that had finished does not stay.
        trusted: use a directory of another user; in one's own, or one that is said to be safe, files of the user's
            whose hashes were not written down.

    Raises:
        ConfigurationError: it is no run directory, another user's, or was changed; none of its code was run.
        CsdError: as `host.app.run_job.run_job`.
    """
    decisive = (JOB_FILE, ARRAY_FILE, VERSIONS_FILE)
    check_owner(path, *decisive, trusted=trusted)
    with RunDirectory.reopen(path) as directory:
        # One consent does not count for both: another's directory, and code that nobody can compare.
        check_sources(path, JOB_FILE, VERSIONS_FILE, trusted and is_own(path, *decisive))
        request = _read_request(path, engine)
        if (summary := directory.read_summary()) and is_done(request.job, summary.rounds, summary.accuracy or 0.0):
            if not quiet:
                console.print(f"{path}: this run has finished; nothing was started")
            return summary
        checkpoint = directory.load_checkpoint(request.sha256)
        last_round = directory.rewind(checkpoint.state.round if checkpoint else 0)
        past = ResumePoint(directory, last_round, checkpoint, directory.read_failures())
        if checkpoint is not None and is_done(request.job, checkpoint.state.round, checkpoint.state.accuracy):
            _end_leftovers(request, paths)
            summary = finish_run(request, directory, checkpoint.state.weights, checkpoint.wall_seconds, past.failures)
            report_run(path, progress)
            return summary
        if checkpoint is not None and getattr(getattr(request.plugins.strategy, "target", None), "is_flower", False):
            _end_leftovers(request, paths)
            raise CheckpointError("a Flower program keeps its own state and cannot be resumed; start the run anew")
        directory.remove_end()
        return run_job(request, paths, past, progress, quiet, stay)


def _read_request(path: Path, engine: str | None) -> RunRequest:
    """Return what the run in a directory was asked to do.

    Raises:
        ConfigurationError: it is on another engine.
    """
    server_group = path / SERVER_GROUP_FILE
    request = prepare_run(
        resolve_run(path / JOB_FILE, path / ARRAY_FILE, servers=server_group if server_group.exists() else None)
    )
    if engine is not None and engine != request.config.engine_label:
        raise ConfigurationError(
            f"--engine {engine}: the run in {path} is on {request.config.engine_label} and can only go on there; "
            "leave --engine out"
        )
    return request


def _end_leftovers(request: RunRequest, paths: Paths) -> None:
    """End the array that the killed run left; one that `csd-emu up` made stays."""
    name = request.config.name
    with array_folder(paths.arrays, name) as folder, contextlib.closing(make_engine(request.config, paths)) as engine:
        if (state := ArrayState.load(folder)) is not None and not list_running(state, paths):
            clear_array(engine, name, folder)
