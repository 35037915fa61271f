"""A cut that is left to us: decided once, said why, and kept by whoever resumes the run."""

from __future__ import annotations

import pytest

from csd_emu.array import ArrayConfig
from csd_emu.placement.decision import Decision
from firmware_agent.models import ModelSpec
from host import run_request
from host.job import JobConfig
from host.placement.choose import choose_placement
from host.run_request import RunRequest, check_run

# The digits' CNN behind 2 MB/s: late, heavy layers are worth moving there.
ARRAY = {
    "name": "lab",
    "engine": "native",
    "devices": [{"profile": "newport", "count": 2}],
    "link": {"bandwidth": "2 MB/s"},
}
JOB = {"model": "digits_cnn", "data": {"source": "digits"}, "mode": "sync", "batch_size": 32, "rounds": 1}


def check(array: dict[str, object] | None = None, **job: object) -> RunRequest:
    config = ArrayConfig.model_validate(array or ARRAY)
    return check_run(config, JobConfig.model_validate(JOB | job), ModelSpec("digits_cnn"))


def test_the_run_names_the_layer_and_says_why() -> None:
    request = check(placement="auto")
    assert request.placed is not None
    layer = request.placed.layer
    assert request.job.placement == request.portable_job.placement == layer
    (note,) = (note for note in request.notes if note.startswith("placement: auto"))
    assert f"cut before {layer!r}" in note
    assert "with nothing moved" in note


def test_where_nothing_moves_that_is_said_too() -> None:
    request = check(ARRAY | {"link": {"bandwidth": "10 GB/s"}}, placement="auto", batch_size=600)
    assert request.placed is None
    assert request.job.placement == "none"
    assert any("every layer stays on the drives" in note for note in request.notes)


def test_a_run_that_is_resumed_keeps_its_cut_whatever_would_be_chosen_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = check(placement="auto")

    def otherwise(request: RunRequest) -> Decision:
        return choose_placement(request, "none")

    monkeypatch.setattr(run_request, "choose_placement", otherwise)
    assert check(placement="auto").placed is None
    again = check_run(begun.config, begun.portable_job, ModelSpec("digits_cnn"))
    assert again.placed == begun.placed
    assert again.sha256 == begun.sha256


def test_what_is_asked_for_by_name_needs_no_reason() -> None:
    for placement in ("none", "6"):
        request = check(placement=placement)
        assert request.decision is None
        assert not any("auto" in note for note in request.notes)
