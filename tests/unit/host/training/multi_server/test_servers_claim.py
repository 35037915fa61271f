"""Which jobs several servers take for the same."""

from typing import Any

import pytest

from host.config.job_file import JobConfig
from host.training.multi_server.server_membership import alike_sha256

JOB: dict[str, Any] = {"model": "digits_cnn", "data": {"source": "digits"}, "mode": "sync", "rounds": 3}


def hash_of(trajectory: str = "same", **job: Any) -> str:
    return alike_sha256(JobConfig.model_validate(JOB | job), trajectory)


@pytest.mark.parametrize(
    "other",
    [
        {"trajectory": "another"},
        {"rounds": 4},
        {"target": {"accuracy": 0.9}},
        {"planner": {"prefer": "time"}},
        {"planner": {"prefer": "energy"}},
    ],
)
def test_servers_that_would_end_or_choose_otherwise_are_not_alike(other: dict[str, Any]) -> None:
    assert hash_of(**other) != hash_of()
    assert hash_of(**other) == hash_of(**other)


def test_preferences_differ() -> None:
    assert hash_of(planner={"prefer": "time"}) != hash_of(planner={"prefer": "energy"})


@pytest.mark.parametrize("free", [{"checkpoint": {"every": 5}}, {"watchdog": "40 s"}])
def test_what_is_each_servers_own_may_differ(free: dict[str, Any]) -> None:
    assert hash_of(**free) == hash_of()
