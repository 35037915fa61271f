"""Tables of a job's own step: measured in an agent, found by runs and tuners, refused where there is none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from csd_emu.profiles.calibration import CalibrationStore, CalibrationTable, load_table, row_mark
from host.app import real_machine
from tests.integration.test_own_task import LANGUAGE, own
from tests.support.commands import Done, Workshop

Command = Callable[..., Done]
SYNC: dict[str, Any] = {"mode": "sync", "tuner": "hypertune", "rounds": 1, "sync": {"round_steps": 4}}

__all__ = ["own"]  # a fixture


def as_counted(table: CalibrationTable) -> CalibrationTable:
    """The table as if a virtual machine had been measured, on which tests of this folder have no claim."""
    found = msgspec.structs.replace(table, core="reference", clock="counted")
    mark = row_mark(found.key, found.image)
    return msgspec.structs.replace(found, rows=tuple(msgspec.structs.replace(row, of=mark) for row in found.rows))


@pytest.mark.slow
@pytest.mark.parametrize("mode", [{"optimizer": "AdamW"}, SYNC])
def test_the_step_of_a_language_model_is_measured_and_modelled(
    mode: dict[str, Any], own: Workshop, csd_emu: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_machine, "MOST_SPREAD", 1e9)  # this machine may be as busy as it likes
    job = own.write("job.yaml", LANGUAGE | mode)
    array = own.write(
        "array.yaml", {"name": "lab", "engine": "native", "devices": [{"profile": "newport", "count": 2}]}
    )
    run = "run", job, "--array", array, "--runs", own.runs, "--json"
    missing = csd_emu(*run, "--clock", "modelled")
    assert missing.code == 2
    assert "no calibration table for records of 6; measure one with csd-emu calibrate JOB.YAML" in missing.err
    measure = "calibrate", job, "--host", "xeon-4108", "--batches", "1,256", "--steps", "3", "--threads", "1", "--json"
    done = csd_emu(*measure)
    assert done.code == 0, done.err
    report = done.json("calibrate")
    table = load_table(Path(report["path"]))
    assert (table.classes, table.input_shape, len(table.task)) == (1, (6,), 16)
    layers = [[layer.name for layer in row.layers.layers] for row in table.rows if row.layers is not None]
    block = [f"block.{name}" for name in ("norm1", "self_attn", "norm2", "linear1", "linear2")]
    # Federated drives compute whole steps: nothing needs the seconds of their layers.
    assert layers == ([["embed", "place", *block]] * 2 if mode is SYNC else [])
    CalibrationStore(own.home / "state" / "calibration").save(as_counted(table))
    summary = csd_emu(*run, "--clock", "modelled")
    assert summary.code == 0, summary.err
    assert summary.json("run")["clock"] == "modelled"
    assert "was measured with SGD" not in (own.run_directory() / "records.jsonl").read_text()
    assert own.agents() == own.arrays() == []


def test_what_cannot_be_measured_or_cut_is_said_before_anything_starts(own: Workshop, csd_emu: Command) -> None:
    job = own.write("job.yaml", LANGUAGE | SYNC | {"tuner": "none"})
    for arguments, message in (
        (("calibrate", job, "--input", "1x8x8"), "says what its model takes; leave --input"),
        (("calibrate", job, "--batches", "4"), "a table needs two or more different batch sizes"),
        (("plan", job, "--array", own.array, "--placement"), "knows the cross_entropy of class numbers alone"),
    ):
        done = csd_emu(*arguments)
        assert done.code == 2
        assert message in " ".join(done.err.split())
    own.assert_clean()
