"""A cut that is left to us: decided once, said why, and kept by whoever resumes the run."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from csd_emu.config.array_file import ArrayConfig
from csd_emu.profiles.calibration import CalibrationStore
from firmware_agent.common.shipped_code import ShippedCode
from host.app import prepare
from host.app.prepare import RunRequest, prepare_run
from host.config.job_file import JobConfig
from host.config.resolve import ResolvedRun
from host.policies.split.cut_decision import CutDecision
from host.training.split.decide_cut import choose_placement
from host.training.split.split_request import PlacementRequest

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
    return prepare_run(ResolvedRun(config, JobConfig.model_validate(JOB | job), ShippedCode("digits_cnn")))


@pytest.mark.slow
def test_the_run_names_the_layer_and_says_why() -> None:
    request = check(placement="auto")
    assert request.placed is not None
    layer = request.placed.layer
    assert request.job.placement == request.portable_job.placement == layer
    (note,) = (note for note in request.notes if note.startswith("placement: auto"))
    assert f"cut before {layer!r}" in note
    assert "with nothing moved" in note


@pytest.mark.slow
def test_where_nothing_moves_that_is_said_too() -> None:
    fast = ARRAY | {"link": {"bandwidth": "10 GB/s"}}
    for asked in ({"placement": "relieve_wire"}, {"placement": "auto", "sync": {"max_host_share": 0.0}}):
        request = check(fast, batch_size=600, **asked)
        assert request.placed is None
        assert request.job.placement == "none"
        assert any("every layer stays on the drives" in note for note in request.notes)
    moved = check(fast, placement="auto", batch_size=600)  # the host is worth 15 drives
    assert moved.job.placement == "2"
    assert any("of the computing moves to the host" in note for note in moved.notes)


@pytest.mark.parametrize("share", [-0.1, 1.1, "much", float("nan")])
def test_a_share_of_the_host_that_is_none_is_refused(share: object) -> None:
    with pytest.raises(ValidationError, match="max_host_share"):
        JobConfig.model_validate(JOB | {"placement": "auto", "sync": {"max_host_share": share}})


@pytest.mark.slow
def test_a_run_that_is_resumed_keeps_its_cut_whatever_would_be_chosen_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = check(placement="auto")

    def otherwise(request: PlacementRequest, _: str, store: CalibrationStore) -> CutDecision:
        return choose_placement(request, "none", store)

    monkeypatch.setattr(prepare, "choose_placement", otherwise)
    assert check(placement="auto").placed is None
    again = prepare_run(ResolvedRun(begun.config, begun.portable_job, ShippedCode("digits_cnn")))
    assert again.placed == begun.placed
    assert again.sha256 == begun.sha256


@pytest.mark.slow
def test_what_is_asked_for_by_name_needs_no_reason() -> None:
    for placement in ("none", "6"):
        request = check(placement=placement)
        assert request.decision is None
        assert not any("auto" in note for note in request.notes)
