"""Facts of a run and its drives for the page, from configuration and metrics."""

from __future__ import annotations

from csd_emu.config.array_file import ArrayConfig
from host.config.job_file import JobConfig
from host.monitoring.metrics.metrics_state import MetricsState
from host.monitoring.page.page_view import Presence
from host.monitoring.page.run_history import RunPlan


def plan_run(config: ArrayConfig, job: JobConfig) -> RunPlan:
    """Return what is known of a run before it begins."""
    return RunPlan(
        array=config.name,
        engine=config.engine_label,
        model=job.model,
        mode=job.mode,
        devices=tuple(node.name for node in config.list_nodes()),
        rounds=job.rounds,
        target_accuracy=job.target.accuracy if job.target is not None else None,
    )


def describe_presences(metrics: MetricsState) -> dict[str, Presence]:
    """Return whether each drive is there, and what it is."""
    return {
        name: Presence(state) if facts is None else Presence(state, facts.kind, facts.profile, facts.clock)
        for name, (state, facts) in metrics.devices().items()
    }
