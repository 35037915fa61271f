"""`csd-emu plan --prefer`: which devices should train a job, from a few steps of it, or from tables alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from csd_emu.config.servers_file import ServersConfig
from csd_emu.util.config_files import load_config
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from firmware_agent.common.errors import ConfigurationError
from host.app.prepare import prepare_run
from host.app.run_job import run_job
from host.app.run_request import RunRequest
from host.cli.placement_report import PlanReport
from host.config.job_file import read_job
from host.config.resolve import JobChanges, resolve_run
from host.core.device_time import MODELLED
from host.core.failures import failed_run
from host.policies.selection.planner_protocol import TrialDecision
from host.policies.selection.selection_report import SelectionReport, describe_plan, read_plan

_MEASURED_IN_A_RUN = (
    "to have devices measured, let all servers choose in their run: csd-emu run --servers SERVERS.YAML --server NAME "
    "--prefer ..."
)


def read_planned(
    job: Path,
    array: Path | None,
    servers: Path | None,
    engine: str | None,
    tuner: str | None,
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
    first = None if servers is None else (servers, load_config(servers, ServersConfig).names[0])
    return prepare_run(resolve_run(job, array, engine, JobChanges(tuner, planner=keys), first))


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
            f"clock can use; {measured if request.server_group is None else _MEASURED_IN_A_RUN}"
        )
    planner = planning.make_planner()
    plan = planner.decide()
    pairs = zip(planning.cluster.kinds, plan.chosen.batches, strict=True)
    of_kind = {node: batch for kind, batch in pairs for node in kind.nodes}
    nodes = {node: of_kind[node] for node in planner.choose_nodes(plan.chosen.configuration)}
    devices = describe_plan(
        *(TrialDecision(plan, nodes, (), 0), planning.cluster, planning.rules),
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
        CsdError: as `host.app.run_job.run_job`.
    """
    section = request.job.planner
    if section is not None and not section.steps and not apply:
        return plan_from_tables(request)
    if request.server_group is not None:
        raise ConfigurationError(f"--servers is planned with --from-tables, which starts nothing; {_MEASURED_IN_A_RUN}")
    summary = run_job(request, paths, runs, progress, quiet, plan_only=not apply)
    devices = read_plan(Path(summary.run_directory))
    if summary.failures and (devices is None or not apply):
        raise failed_run(summary.failures, summary.run_directory)
    if devices is None:
        raise ConfigurationError(f"{summary.run_directory}: the run has decided nothing; start it again")
    return msgspec.structs.replace(_report(request, devices), summary=summary, applied=apply)


def _report(request: RunRequest, devices: SelectionReport) -> PlanReport:
    shape = [int(size) for size in request.dataset.images.shape[1:]]
    name = request.config.name if request.server_group is None else request.server_group.config.name
    return PlanReport(model=request.job.model, input_shape=shape, array=name, placement=None, devices=devices)
