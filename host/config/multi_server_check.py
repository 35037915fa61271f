"""Check that a job can be trained over several servers."""

from __future__ import annotations

from firmware_agent.common.errors import ConfigurationError
from host.config.job_file import JobConfig


def fit_job(job: JobConfig) -> JobConfig:
    """Return the job as it is trained over several servers: without overlap where that was left to us.

    Raises:
        ConfigurationError: it cannot.
    """
    one = "or train on one server, with --array in place of --servers"
    refused = {
        f"mode: {job.mode}: servers add up gradients step by step; use mode: sync": job.mode != "sync",
        "placement: the host's part of a model is one server's; leave it out": job.placement != "none",
        "sync.batch_norm: synchronised: statistics are exchanged within a server; use device or frozen": (
            job.sync.batch_norm == "synchronised"
        ),
        "communication.overlap: a step's weights are there when all servers have returned; leave it out": (
            job.communication.overlap is True
        ),
    }
    for reason, hit in refused.items():
        if hit:
            raise ConfigurationError(f"{reason}, {one}")
    return job.model_copy(update={"communication": job.communication.model_copy(update={"overlap": False})})
