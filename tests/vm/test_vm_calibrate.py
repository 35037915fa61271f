"""csd-emu calibrate on a real virtual machine, as a user's own process."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from csd_emu.profiles.calibration import load_table
from tests.support.machines import DAEMON_OUTLIVES
from tests.vm.conftest import VmWorkshop

pytestmark = [pytest.mark.vm, pytest.mark.long, pytest.mark.filterwarnings(DAEMON_OUTLIVES)]

NET = """
from torch import nn

def build(width: int = 8):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 3))
"""


@pytest.fixture
def net(workshop: VmWorkshop) -> Path:
    """A model file that no table was ever measured for."""
    return workshop.write("net.py", f"# {uuid.uuid4()}\n{NET}")


@pytest.fixture
def tables() -> Iterator[list[Path]]:
    """Files to remove afterwards: the command keeps its table among the user's own."""
    paths: list[Path] = []
    yield paths
    for path in paths:
        path.unlink()


def test_a_users_model_is_measured_kept_and_confirmed(workshop: VmWorkshop, net: Path, tables: list[Path]) -> None:
    model = [f"{net}:build", "--input", "1x8x8", "--argument", "width=16"]
    first = workshop.run("calibrate", *model, "--batches", "64,8", "--json", seconds=400)
    assert first.code == 0, first.err
    report = first.json("calibrate")
    assert [row["batch_size"] for row in report["rows"]] == [8, 64]
    assert (report["clock"], report["classes"], report["parameters"]) == ("counted", 3, 65 * 16 + 17 * 3)
    tables.append(Path(report["path"]))
    assert tables[0].parent.name == "calibration"
    table = load_table(tables[0])
    assert (table.image, table.memory_source) == (report["image"], "VmHWM")
    for row in table.rows:
        assert len(row.steps) > 1
        assert all(step.forward > 0 and step.backward > 0 and step.update > 0 for step in row.steps)
        assert row.peak_memory_bytes > 100e6
        assert row.layers is not None
        front, back = row.layers.layers
        assert (front.name, back.name) == ("1", "3")
        assert 0 < back.forward_seconds < row.seconds.forward
        # Watching is known to take time, by a clock that counts.
        assert 1 < row.layers.watched.forward / row.seconds.forward < 2
    again = workshop.run("calibrate", *model, "--verify", "1", "--seed", "5", "--json", seconds=400)
    assert again.code == 0, again.err
    (verified,) = again.json("calibrate")["verified"]
    assert verified["batch_size"] in (8, 64)
    assert abs(verified["relative_difference"]) < 0.02
    assert load_table(tables[0]) == table
    workshop.assert_clean()


def test_a_row_of_the_shipped_table_is_confirmed(workshop: VmWorkshop) -> None:
    done = workshop.run("calibrate", "digits_cnn", "--verify", "1", "--json", seconds=400)
    assert done.code == 0, done.err
    report = done.json("calibrate")
    assert len(report["verified"]) == 1
    assert report["confirmed"]
    workshop.assert_clean()
