"""`csd-emu stack drives` and `csd-emu stack host`: what the containers of docker-compose.yml run."""

from __future__ import annotations

import os

import typer

from csd_emu.util.paths import Paths
from host.core.console import StageProgress, console, print_summary
from host.core.interrupts import INTERRUPTS
from host.core.summary import Summary

stack_app = typer.Typer(no_args_is_help=True, help="What the containers of docker-compose run.")


@stack_app.command("drives")
def stack_drives() -> None:
    """Bring up the array that the environment asks for, and keep it up."""
    with INTERRUPTS.deferred():
        from host.app.stack.drives_container import run_drives
        from host.app.stack.stack_settings import StackSettings

    settings = StackSettings.read(os.environ)
    with StageProgress() as progress:
        run_drives(settings, Paths.default(), progress)


@stack_app.command("host")
def stack_host() -> None:
    """Train on the array that `stack drives` keeps up; then stay, with metrics and page."""
    with INTERRUPTS.deferred():
        from host.app.stack.host_container import run_host
        from host.app.stack.stack_settings import StackSettings

    settings = StackSettings.read(os.environ)
    with StageProgress() as progress:
        run_host(settings, Paths.default(), progress, say_staying)


def say_staying(summary: Summary) -> None:
    """Print how the run ended, and that the process goes on."""
    print_summary(summary)
    console.print("the drives' sessions, metrics and live page stay until this ends")
