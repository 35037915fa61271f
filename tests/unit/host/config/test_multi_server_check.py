"""Which jobs are trained over several servers, and what the others are told."""

from __future__ import annotations

from typing import Any

import pytest

from firmware_agent.common.errors import ConfigurationError
from host.config.job_file import JobConfig
from host.config.resolve import fit_job

JOB: dict[str, Any] = {"model": "digits_cnn", "data": {"source": "digits"}, "mode": "sync", "rounds": 1}


def job(**fields: Any) -> JobConfig:
    return JobConfig.model_validate(JOB | fields)


@pytest.mark.parametrize("overlap", [None, False])
@pytest.mark.parametrize("fields", [{}, {"planner": {}}])
def test_a_job_that_fits_is_trained_without_overlap(fields: dict[str, Any], overlap: bool | None) -> None:
    given = job(**fields, communication={} if overlap is None else {"overlap": overlap})
    fitted = fit_job(given)
    assert fitted.communication.overlap is False
    assert fitted == given.model_copy(
        update={"communication": given.communication.model_copy(update={"overlap": False})}
    )


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"mode": "federated"}, "mode: federated"),
        ({"placement": "auto"}, "placement"),
        ({"sync": {"batch_norm": "synchronised"}}, r"sync\.batch_norm: synchronised"),
        ({"communication": {"overlap": True}}, r"communication\.overlap"),
    ],
)
def test_what_one_server_alone_can_do_is_refused_with_a_way_out(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{says}.*--array in place of --servers"):
        fit_job(job(**fields))
