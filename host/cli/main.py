"""The array of emulated computational storage drives: start it, train on it, measure it."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated, Literal

import typer

from csd_emu.util.open_files import raise_open_files
from csd_emu.util.paths import Paths
from firmware_agent import __version__
from firmware_agent.common.errors import CsdError, EnvironmentUnfit
from host.cli.commands import arrays, runs, shipped
from host.cli.commands.calibrate import calibrate
from host.cli.commands.deploy import deploy_app
from host.cli.commands.describe import describe
from host.cli.commands.history import compare, runs_app
from host.cli.commands.images import image_app
from host.cli.commands.plan import plan
from host.cli.commands.report import explain, report, top
from host.cli.commands.runs import ci_app, store
from host.cli.commands.stack import stack_app
from host.cli.lab_commands import CommandGroup, add_commands
from host.core.console import LOG_VARIABLE, errors, log_as_json, log_to_terminal, print_line, print_user_traceback
from host.core.interrupts import INTERRUPTS

INTERRUPTED = 130
FULL = (errno.ENOSPC, errno.EDQUOT)

# Commands import what they need themselves, for a quick --help; in `deferred`, because an interrupted import can leave
# numpy or torch in pieces, which end in a traceback.
app = typer.Typer(cls=CommandGroup, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
COMMANDS = (
    *(runs.run, arrays.up, arrays.down, arrays.status, arrays.clean, calibrate),
    *(compare, report, explain, top),
    *(plan, shipped.profiles, describe, arrays.validate),
    *(arrays.inject, store),
    *(shipped.doctor, shipped.example, shipped.schema, shipped.docs),
)
# Under these headings in --help.
PANELS = {
    "Train": ("run", "up", "down", "status", "clean", "sweep", "calibrate"),
    "Look": ("runs", "compare", "report", "explain", "top"),
    "Plan": ("plan", "simulate", "tune", "profiles", "describe", "validate"),
    "Faults, gates, real drives, servers": ("inject", "ci", "deploy", "store", "stack"),
    "Set up": ("doctor", "docs", "example", "schema", "image"),
}
_OTHERS = "For developers"
# Of each: an example, and the page that says more.
HELP = {
    "run": ("run job.yaml --drives 3 --engine native --set rounds=6", "training"),
    "up": ("up array.yaml --job job.yaml", "configuration"),
    "down": ("down quickstart", "faults"),
    "status": ("status", "faults"),
    "clean": ("clean quickstart", "faults"),
    "sweep": ("sweep job.yaml --over batch_size=16,32,64 --seeds 0:5 --engine native", "runs"),
    "calibrate": ("calibrate my_net.py:build --input 3x32x32 --batches 1,16", "calibration"),
    "runs": ("runs --state finished --sort accuracy", "runs"),
    "compare": ("compare narrow wide --output narrow-wide.html", "runs"),
    "report": ("report runs/20261130-120000-job --output report.html", "report"),
    "explain": ("explain runs/20261130-120000-job", "tuning"),
    "top": ("top", "metrics"),
    "plan": ("plan job.yaml --array array.yaml --prefer energy --from-tables", "planner"),
    "simulate": ("simulate job.yaml --array array.yaml --drives 36 --steps 50", "simulate"),
    "tune": ("tune job.yaml --array array.yaml", "tuning"),
    "profiles": ("profiles newport", "power"),
    "describe": ("describe --profile newport", "standards"),
    "validate": ("validate job.yaml --build", "configuration"),
    "inject": ("inject quickstart csd-01 slow --weight 300 --for 20", "faults"),
    "ci": ("ci run job.yaml --array array.yaml --baseline baseline.json", "ci"),
    "deploy": ("deploy probe drives.yaml", "deploy"),
    "store": ("store servers.yaml", "servers"),
    "stack": ("stack drives", "compose"),
    "doctor": ("doctor", "install"),
    "example": ("example quickstart", "index"),
    "schema": ("schema job.yaml", "configuration"),
    "docs": ("docs runs", "index"),
    "image": ("image list", "images"),
    "bench": ("bench api --quick", "benchmarks"),
    "clocks": ("clocks job.yaml --array array.yaml", "sampled"),
    "fidelity": ("fidelity csd-00 --inventory drives.yaml", "fidelity"),
    "power": ("power fit log.csv --profile newport --name mine", "power"),
    "recalibrate": ("recalibrate --output tables", "calibration"),
    "reproduce": ("reproduce planner", "reproduce"),
}
for command in COMMANDS:
    app.command()(command)
app.add_typer(runs_app, name="runs")
app.add_typer(deploy_app, name="deploy")
app.add_typer(image_app, name="image")
app.add_typer(stack_app, name="stack")
app.add_typer(ci_app, name="ci")
add_commands(app)


_EPILOG_OF = {
    name: f"Example: csd-emu {example}\n\nMore: csd-emu docs {page}" for name, (example, page) in HELP.items()
}
_PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}
for command_info in app.registered_commands:
    name = command_info.name or getattr(command_info.callback, "__name__", "")
    command_info.rich_help_panel = _PANEL_OF.get(str(name), _OTHERS)
    command_info.epilog = _EPILOG_OF.get(str(name))
for group_info in app.registered_groups:
    group_info.rich_help_panel = _PANEL_OF.get(group_info.name or "", _OTHERS)
    group_info.epilog = _EPILOG_OF.get(str(group_info.name))


def _print_version(asked: bool) -> None:
    if asked:
        print_line(f"csd-emu {__version__}")
        raise typer.Exit


@app.callback()
def prepare(
    version: Annotated[  # noqa: ARG001 - its callback acts
        bool, typer.Option("--version", help="print it, and end", callback=_print_version, is_eager=True)
    ] = False,
    log_format: Annotated[
        Literal["text", "json"],
        typer.Option("--log-format", envvar=LOG_VARIABLE, help="of standard error; json: one object per line"),
    ] = "text",
) -> None:
    """Do what options before the command's name ask for."""
    log_as_json(errors) if log_format == "json" else log_to_terminal()


def main() -> None:
    """Run the command line; an error of ours becomes one message and its exit code, Ctrl-C becomes 130."""
    # What is started from here execs at once: gRPC need not prepare for a fork, nor say that it could not.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    # torch's compiler makes its folder when it is imported, as where layers are traced.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Paths.default().cache / "torch"))
    raise_open_files()
    try:
        with INTERRUPTS.installed():
            app(prog_name="csd-emu")
    except CsdError as error:
        errors.print(f"csd-emu: {error}", style="red", markup=False)
        print_user_traceback(error)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in FULL:
            raise
        errors.print(f"csd-emu: {error}; free some disk space", style="red", markup=False)
        sys.exit(EnvironmentUnfit.exit_code)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            errors.print("csd-emu: interrupted; what this command started has ended")
        raise
