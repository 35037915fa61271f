"""`csd-emu run --resume`: a run that was ended goes on in its own directory, on the same trajectory."""

from __future__ import annotations

import contextlib
from pathlib import Path

from csd_emu.engines import make_engine
from csd_emu.paths import Paths
from csd_emu.progress import Progress
from firmware_agent.errors import ConfigurationError
from host.array_state import ArrayState, array_folder
from host.console import console
from host.files import check_owner, is_own
from host.lifecycle import clear_array, list_running
from host.recorder import Past
from host.requests import read_run
from host.run import Stay, run_job
from host.run_directory import ARRAY_FILE, HALL_FILE, JOB_FILE, VERSIONS_FILE, RunDirectory
from host.run_end import finish_run, report_run
from host.run_request import RunRequest
from host.run_sources import check_sources
from host.summary import Summary
from host.training import is_done


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
        stay: as in `host.run.run_job`; a run that had finished does not stay.
        trusted: use a directory of another user; in one's own, or one that is said to be safe, files of the user's
            whose hashes were not written down.

    Raises:
        ConfigurationError: it is no run directory, another user's, or was changed; none of its code was run.
        CsdError: as `host.run.run_job`.
    """
    decisive = (JOB_FILE, ARRAY_FILE, VERSIONS_FILE)
    check_owner(path, *decisive, trusted=trusted)
    with RunDirectory.reopen(path) as directory:
        # One consent does not count for both: another's directory, and code that nobody can compare.
        check_sources(path, JOB_FILE, VERSIONS_FILE, trusted and is_own(path, *decisive))
        hall = path / HALL_FILE
        request = read_run(path / JOB_FILE, path / ARRAY_FILE, servers=hall if hall.exists() else None)
        if engine is not None and engine != request.config.engine_label:
            raise ConfigurationError(
                f"--engine {engine}: the run in {path} is on {request.config.engine_label} and can only go on there; "
                "leave --engine out"
            )
        summary = directory.read_summary()
        if summary is not None and is_done(request.job, summary.rounds, summary.accuracy or 0.0):
            if not quiet:
                console.print(f"{path}: this run has finished; nothing was started", soft_wrap=True)
            return summary
        checkpoint = directory.load_checkpoint(request.sha256)
        rounds = directory.rewind(checkpoint.state.round if checkpoint else 0)
        past = Past(directory, rounds, checkpoint, directory.read_failures())
        if checkpoint is not None and is_done(request.job, checkpoint.state.round, checkpoint.state.accuracy):
            _end_leftovers(request, paths)
            weights, seconds = checkpoint.state.weights, checkpoint.wall_seconds
            summary = finish_run(request, directory, past.rounds, weights, seconds, past.failures)
            report_run(path, progress)
            return summary
        directory.remove_end()
        return run_job(request, paths, path.parent, progress, quiet, past, stay)


def _end_leftovers(request: RunRequest, paths: Paths) -> None:
    """End the array that the killed run left; one that `csd-emu up` made stays."""
    name = request.config.name
    with array_folder(paths.arrays, name) as folder, contextlib.closing(make_engine(request.config, paths)) as engine:
        state = ArrayState.load(folder)
        if state is not None and not list_running(state, paths):
            clear_array(engine, name, folder)
