"""A host that was measured: its seconds are those of its own table in every command."""

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from csd_emu.profiles import get_profile
from csd_emu.profiles.calibration import load_table
from host.app import real_machine
from host.core.device_time import host_model
from tests.support.commands import Done, Workshop

PROFILE = "xeon-4108"
ARRAY: dict[str, Any] = {
    "name": "lab",
    "engine": "native",
    "host": {"trains": True},
    "devices": [{"profile": "newport"}],
}
JOB: dict[str, Any] = {
    "model": "digits_cnn",
    "data": {"source": "digits"},
    "mode": "sync",
    "batch_size": 16,
    "rounds": 1,
    "sync": {"round_steps": 4},
}


@pytest.mark.slow
def test_a_host_that_was_measured_is_as_fast_as_its_table_says(
    workshop: Workshop, csd_emu: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_machine, "MOST_SPREAD", 1e9)  # this machine may be as busy as it likes
    files = workshop.write("job.yaml", JOB), "--array", workshop.write("array.yaml", ARRAY)
    before = csd_emu("tune", *files, "--json").json("tune")
    assert before["host_ratio"] == 15.2
    done = csd_emu(
        "calibrate", "digits_cnn", "--host", PROFILE, "--batches", "1,512", "--steps", "3", "--threads", "1", "--json"
    )
    assert done.code == 0, done.err
    report = done.json("calibrate")
    assert (report["clock"], report["core"], report["drive"], report["image"]) == ("wall", PROFILE, "this machine", "")
    table = load_table(Path(report["path"]))
    assert [(row.batch_size, len(row.steps), row.layers is not None) for row in table.rows] == [
        (1, 3, True),
        (512, 3, True),
    ]
    assert table.versions.processor.endswith("of them")

    assert csd_emu("run", *files, "--runs", workshop.runs).code == 0
    (record,) = workshop.rounds()
    (host,) = [device for device in record["devices"] if device["device"] == "host"]
    assert host["clock"] == "modelled"
    step = host_model(table, get_profile(PROFILE)).step_seconds(16)
    assert host["device_seconds"]["forward"] == pytest.approx(4 * step.forward)
    assert host["device_seconds"]["backward"] == pytest.approx(4 * step.backward)
    told = "the host's seconds are modelled by its own calibration table"
    assert told in (workshop.run_directory() / "records.jsonl").read_text()
    page = html.unescape((workshop.run_directory() / "report.html").read_text())
    assert "Time and energy of the baseline cannot be told. The host's seconds are those of its own" in page
    # On the machine's own clock no table counts, and nothing is said of one.
    workshop.write("array.yaml", ARRAY | {"clock": "wall"})
    assert csd_emu("run", *files, "--runs", workshop.folder / "wall").code == 0
    (records,) = (workshop.folder / "wall").glob("*/records.jsonl")
    assert told not in records.read_text()
    workshop.write("array.yaml", ARRAY)
    after = csd_emu("tune", *files, "--json").json("tune")
    assert after["host_ratio"] != before["host_ratio"]
    simulated = csd_emu("simulate", *files, "--json").json("simulate")
    assert {run["ratio"] for run in simulated["runs"]} == {after["host_ratio"]}
