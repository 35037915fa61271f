"""The fleet's part of the bench `scaleout` on real processes, made small."""

import os
from pathlib import Path

import psutil
import pytest

from csd_lab.bench.scaleout import scaleout as scaleout_fleet
from csd_lab.bench.scaleout.fleet_stubs import answer
from csd_lab.bench.scaleout.scaleout import measure_fleet
from firmware_agent.common.errors import EnvironmentUnfit, ProtocolError
from firmware_agent.common.frames.session_frames import Train
from firmware_agent.common.frames.step_frames import Step
from firmware_agent.common.wire import encode, pack, unpack


def children() -> list[psutil.Process]:
    living = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in living if "csd_lab.bench.fleet" in " ".join(child.cmdline())]


@pytest.mark.long
def test_it_reports_both_figures_with_their_samples(tmp_path: Path) -> None:
    figures, samples = measure_fleet(tmp_path, 0, devices=5, rounds=3)
    assert set(figures) == {"noop_round_seconds", "megabytes"}
    seconds = samples["round_seconds"]
    assert isinstance(seconds, list)
    assert len(seconds) == 3
    assert min(seconds) > 0
    assert figures["noop_round_seconds"] == sorted(seconds)[1]
    before, peak = (samples[name] for name in ("before_bytes", "peak_bytes"))
    assert isinstance(before, int)
    assert isinstance(peak, int)
    assert 0 < before <= peak
    assert figures["megabytes"] == peak / 1e6
    assert children() == []


@pytest.mark.long
def test_keys_are_for_their_user_alone(tmp_path: Path) -> None:
    measure_fleet(tmp_path, 0, devices=2, rounds=1)
    for path in (*tmp_path.glob("*.json"), tmp_path / "keys" / "host.key"):
        assert os.stat(path).st_mode & 0o077 == 0


def test_a_host_that_fails_is_one_clear_error_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaleout_fleet, "_STUBS", "csd_lab.bench.no_such_module")
    monkeypatch.setattr(scaleout_fleet, "DEADLINE_SECONDS", 6.0)
    with pytest.raises(EnvironmentUnfit, match=r"0 of 2 stub agents dialled in|not done in 6 s"):
        measure_fleet(tmp_path, 0, devices=2, rounds=1)
    assert children() == []


def test_a_stub_does_not_pretend_to_train() -> None:
    for task in (Train(1, 1), Step(1, b"\0\0\0\0", 1)):
        with pytest.raises(ProtocolError, match="cannot train"):
            answer(tuple(pack([encode(task)])))
    (report,) = (frame for message in answer((encode(Train(7, 0)),)) for frame in unpack(message))
    assert getattr(report, "round", None) == 7
