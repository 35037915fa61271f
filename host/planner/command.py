"""`csd-emu plan --prefer`: which devices should train a job, from a few steps of it, or from tables alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from csd_emu.config import load_config
from csd_emu.paths import Paths
from csd_emu.progress import Progress
from csd_emu.servers import ServersConfig
from csd_emu.yaml_files import LISTS
from firmware_agent.errors import ConfigurationError
from host.device_time import MODELLED
from host.failures import failed_run
from host.job import read_job
from host.placement.report import PlanReport
from host.planner.report import DevicePlan, describe_plan, read_plan
from host.requests import read_run
from host.run import run_job
from host.tuning.sections import TunerName

if TYPE_CHECKING:
    from host.run_request import RunRequest

_MEASURED_IN_A_RUN = (
    "to have devices measured, let all servers choose in their run: csd-emu run --servers SERVERS.YAML --server NAME "
    "--prefer ..."
)


def read_planned(
    job: Path,
    array: Path | None,
    servers: Path | None,
    engine: str | None,
    tuner: TunerName | None,
    keys: Mapping[str, Any],
    what: str,
) -> RunRequest:
    """Read a job and its array or servers, with these `keys` in place of its section ``planner``'s.

    Raises:
        ConfigurationError: they do not fit together, or neither the job nor `keys` say `what` is to be planned.
    """
    if "prefer" not in keys and read_job(job).planner is None:
        raise ConfigurationError(f"say what to plan: {what}")
    # All servers plan alike: any of them will do.
    first = None if servers is None else (servers, load_config(servers, ServersConfig, LISTS).names[0])
    return read_run(job, array, engine, tuner, planner=keys, servers=first)


def plan_from_tables(request: RunRequest) -> PlanReport:
    """Return what the calibration tables say; nothing is started.

    Raises:
        ConfigurationError: there are no tables, or nothing is feasible.
    """
    planning = request.planning
    if planning is None:
        raise ConfigurationError("planner: the job has no such section; add one, for example planner: {prefer: edp}")
    if unknown := [kind.name for kind in planning.cluster.kinds if kind.speed is None]:
        measured = "leave --from-tables out, with --steps of 1 or more, so that it is measured"
        raise ConfigurationError(
            f"how fast {', '.join(unknown)} trains {request.spec.name!r} is in no calibration table that this array's "
            f"clock can use; {measured if request.hall is None else _MEASURED_IN_A_RUN}"
        )
    planner = planning.make_planner()
    plan = planner.decide()
    pairs = zip(planning.cluster.kinds, plan.chosen.batches, strict=True)
    of_kind = {node: batch for kind, batch in pairs for node in kind.nodes}
    nodes = {node: of_kind[node] for node in planner.choose_nodes(plan.chosen.configuration)}
    devices = describe_plan(
        *(plan, planning.cluster, planning.rules, nodes, ()),
        clock=MODELLED,
        records=planning.records,
        notes=planning.notes(nodes),
    )
    return _report(request, devices)


def plan_devices(
    request: RunRequest, paths: Paths, runs: Path, progress: Progress, quiet: bool, apply: bool
) -> PlanReport:
    """Decide: by tables if the job asks for no steps; else in a run, in steps that count.

    Start the array for that, or take the one that is up, and go on to the end with `apply`.

    Raises:
        ConfigurationError: nothing is feasible; what was trained until then is kept.
        UserCodeFailed: code of the user's failed before it was decided.
        CsdError: as `host.run.run_job`.
    """
    section = request.job.planner
    if section is not None and not section.steps and not apply:
        return plan_from_tables(request)
    if request.hall is not None:
        raise ConfigurationError(f"--servers is planned with --from-tables, which starts nothing; {_MEASURED_IN_A_RUN}")
    summary = run_job(request, paths, runs, progress, quiet, plan_only=not apply)
    devices = read_plan(Path(summary.run_directory))
    if summary.failures and (devices is None or not apply):
        raise failed_run(summary.failures, summary.run_directory)
    if devices is None:
        raise ConfigurationError(f"{summary.run_directory}: the run has decided nothing; start it again")
    return msgspec.structs.replace(_report(request, devices), summary=summary, applied=apply)


def _report(request: RunRequest, devices: DevicePlan) -> PlanReport:
    shape = [int(size) for size in request.dataset.images.shape[1:]]
    name = request.config.name if request.hall is None else request.hall.config.name
    return PlanReport(model=request.job.model, input_shape=shape, array=name, placement=None, devices=devices)
