"""Which jobs are trained over several servers, and what the others are told."""

from __future__ import annotations

from typing import Any

import pytest

from csd_emu.servers import ServersConfig
from firmware_agent.errors import ConfigurationError
from host.job import JobConfig
from host.servers.fitting import fit_job
from host.servers.hall import Hall
from tests.servers import array_of

JOB: dict[str, Any] = {"model": "digits_cnn", "data": {"source": "digits"}, "mode": "sync", "rounds": 1}


def hall(**fields: Any) -> Hall:
    config = ServersConfig.model_validate({"name": "hall", "servers": [{"name": "a", "array": "a.yaml"}]} | fields)
    return Hall(config, "a", array_of([("a", 2)]), array_of([("a", 2)]), {})


def job(**fields: Any) -> JobConfig:
    return JobConfig.model_validate(JOB | fields)


@pytest.mark.parametrize("overlap", [None, False])
def test_a_job_that_fits_is_trained_without_overlap(overlap: bool | None) -> None:
    given = job(communication={} if overlap is None else {"overlap": overlap})
    fitted = fit_job(given, hall())
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
        fit_job(job(**fields), hall())


@pytest.mark.parametrize("fields", [{}, {"planner": {}}])
@pytest.mark.parametrize("every", [1, 4])
def test_local_steps_are_trained_as_steps_of_all_are(fields: dict[str, Any], every: int) -> None:
    fitted = fit_job(job(**fields), hall(reduce_every=every))
    assert fitted.planner == job(**fields).planner
    assert fitted == fit_job(job(**fields), hall())
