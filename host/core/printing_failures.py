"""Console output of failures of the user's own code."""

from __future__ import annotations

from collections.abc import Sequence

from firmware_agent.common.errors import ModelError, PluginError, UserCodeFailed
from firmware_agent.common.folded_traceback import MAX_TRACEBACK_BYTES, bounded, format_user_traceback, names_user_code
from host.core.console import console, errors
from host.core.failures import Failure, describe_failures


def print_failure(failure: Failure) -> None:
    """Print a failure as it comes for the first time, with its traceback."""
    errors.print(f"csd-emu: {failure.headline}", style="bold red", markup=False)
    if failure.traceback:
        errors.print(failure.traceback, markup=False)


def print_failures(failures: Sequence[Failure]) -> None:
    """Print the failures of a run that has ended; nothing if there were none."""
    if failures:
        told = f"the run failed: {describe_failures(failures)} (tracebacks: report.html, summary.json)"
        console.print(told, style="bold red", markup=False, soft_wrap=True)


def print_user_traceback(error: BaseException) -> None:
    """Print the traceback of the user's code that an error which ends the command is about, if there is one."""
    told = error.traceback if isinstance(error, UserCodeFailed) else ""
    if not told and isinstance(error, ModelError | PluginError | UserCodeFailed) and names_user_code(error):
        told = format_user_traceback(error)
    if told:
        errors.print(bounded(told, MAX_TRACEBACK_BYTES), markup=False)
