"""`csd-emu sweep`: a job with many values of its keys, over seeds."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from csd_emu.config.engine_names import ArrayChanges
from csd_lab.sweep.sweep_points import Values, parse_over, parse_seeds
from firmware_agent.common.errors import ConfigurationError
from host.cli.commands.arrays import clean
from host.cli.common_options import ArrayOrDefault, DrivesOption, EngineOption, Json, ProfileOption, SetOption
from host.config.array_files import find_array
from host.config.overrides import merge_keys, parse_assignments
from host.core.console import console, errors, figures_table, print_json
from host.core.interrupts import INTERRUPTS

if TYPE_CHECKING:
    from csd_lab.sweep.job_sweep import SweptReport
    from csd_lab.sweep.swept_run import SweptRun


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(sweep)


OverOption = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUES", help="batch_size=16,32; with --samples learning_rate=0.01..0.1:log"),
]
ClusterOption = Annotated[
    str | None, typer.Option(metavar="slurm|local", help="train each run in a task of its own, by submitit")
]
ClusterSetOption = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="of submitit: timeout_min=60 (else a day), slurm_partition=a"),
]
FolderOption = Annotated[
    Path | None, typer.Option("--runs", help="folder of the sweep; else runs/sweep-JOB. It goes on if it is there")
]


def sweep(
    job: Annotated[list[str] | None, typer.Argument(metavar="JOB.YAML", help="what to train")] = None,
    over: OverOption = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="FIRST:END", help="of each point: 0:5 are 0 to 4; else the job's own")
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="points that Optuna chooses, in place of all")] = None,
    objective: Annotated[str, typer.Option(help="the figure that says which point is best")] = "accuracy",
    max_parallel: Annotated[int, typer.Option(min=1, max=256, help="so many runs at once")] = 1,
    cluster: ClusterOption = None,
    cluster_option: ClusterSetOption = None,
    array: ArrayOrDefault = None,
    drives: DrivesOption = None,
    profile: ProfileOption = None,
    engine: EngineOption = None,
    sets: SetOption = None,
    folder: FolderOption = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.SVG", help="draw the objective of all points")] = None,
    as_json: Json = False,
) -> None:
    """Train a job with every value, or with sampled ones, and each seed; go on where an earlier sweep ended."""
    if not over:
        errors.print("csd-emu sweep ARRAYS is called csd-emu clean now; a sweep has --over KEY=VALUES")
        return clean(job, array, as_json)
    with INTERRUPTS.deferred():
        from csd_lab.sweep.job_sweep import report_sweep
        from csd_lab.sweep.job_sweep import sweep as sweep_job
        from host.monitoring.report.charts.chart_figure import check_picture, save_picture

    check_picture(plot)
    path, changes = _only(job), ArrayChanges(engine, None, drives, profile)
    result = sweep_job(
        path,
        _read_over(over),
        seeds=None if seeds is None else parse_seeds(seeds),
        samples=samples,
        objective=objective,
        changes=parse_assignments(sets or [], "--set"),
        array={"file": find_array(path, array, changes), **changes.keys},
        max_parallel=max_parallel,
        cluster=cluster,
        cluster_options=parse_assignments(cluster_option or [], "--cluster-option"),
        folder=folder or Path("runs") / f"sweep-{path.stem}",
        on_run=partial(_tell, objective),
    )
    if plot is not None:
        save_picture(result.plot(), plot)
    print_json(report_sweep(result)) if as_json else print_swept(report_sweep(result))
    raise typer.Exit(1 if any(run.error for run in result.runs) else 0)


def _read_over(over: list[str]) -> dict[str, Values]:
    values: dict[str, Values] = {}
    for key, listed in map(parse_over, over):
        merge_keys(values, {key: listed}, "--over")
    return values


def _only(job: list[str] | None) -> Path:
    if job is None or len(job) != 1:
        raise ConfigurationError("a sweep is of one job; give one JOB.YAML")
    return Path(job[0])


def _tell(objective: str, run: SweptRun) -> None:
    told = ", ".join(f"{key} {value}" for key, value in run.point.items())
    came = run.error or f"{objective} {run.figures.get(objective, float('nan')):.5g}"
    errors.print(f"{told}: {came}", markup=False)


def print_swept(report: SweptReport) -> None:
    """Print a row a point, the best first, and what failed."""
    keys = list(report.points[0].point) if report.points else []
    table = figures_table("Points, the best first", (*keys, report.objective, "deviation", "seeds", "clock"), left=keys)
    for row in report.points:
        spread = "" if row.deviation is None else f"{row.deviation:.2g}"
        table.add_row(*map(str, row.point.values()), f"{row.mean:.5g}", spread, str(row.seeds), row.clock)
    console.print(table)
    for run in report.runs:
        if run.error:
            console.print(f"failed: {run.point}: {run.error}", markup=False)
