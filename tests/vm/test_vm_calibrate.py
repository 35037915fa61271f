"""csd-emu calibrate on a real virtual machine, as a user's own process."""

import shutil
import statistics
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from csd_emu.profiles.calibration import load_table
from csd_emu.util.paths import Paths, packaged_folder
from tests.support.commands import ARRAY
from tests.support.machines import DAEMON_OUTLIVES
from tests.vm.conftest import NAME, VmWorkshop

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


def test_a_run_measures_what_no_table_has_once(workshop: VmWorkshop, net: Path, tables: list[Path]) -> None:
    net.write_text(net.read_text(encoding="utf-8").replace("(width, 3)", "(width, 10)"), encoding="utf-8")
    job = {"model": f"{net}:build", "model_arguments": {"width": 16}, "data": {"source": "digits"}, "rounds": 1}
    path = workshop.write("calibrated.yaml", job)
    array = workshop.write("auto.yaml", ARRAY | {"calibrate": "auto", "engine": "native"})
    drives = ["--drives", "2", "--engine", "native", "--runs", str(workshop.runs), "--json"]
    hint = workshop.run("run", str(path), *drives[:-1], seconds=400)
    assert "csd-emu run --calibrate" in hint.out
    begun = set(calibration_tables())
    first = workshop.run("run", str(path), *drives, "--calibrate", seconds=400)
    assert first.json("run")["clock"] == "modelled", first.err
    tables += set(calibration_tables()) - begun
    assert len(tables) == 1
    again = workshop.run("run", str(path), "--array", str(array), "--runs", str(workshop.runs), "--json", seconds=100)
    assert again.json("run")["clock"] == "modelled"
    assert "measure" not in again.err


def test_a_table_of_columns_with_a_loss_of_its_own_is_measured_and_foretells_a_machine(
    workshop: VmWorkshop, tables: list[Path]
) -> None:
    shutil.copytree(packaged_folder("host", "examples", "examples") / "regression", workshop.folder / "regression")
    job = workshop.folder / "regression" / "job.yaml"
    net = workshop.folder / "regression" / "regression.py"  # which no table was ever measured for
    net.write_text(f"{net.read_text(encoding='utf-8')}# {uuid.uuid4()}\n", encoding="utf-8")
    begun = set(calibration_tables())
    seconds = []
    for engine, more in (("native", ["--calibrate"]), ("qemu", [])):
        run = ["run", str(job), "--drives", "1", "--engine", engine, "--runs", str(workshop.runs), "--json", *more]
        done = workshop.run(*run, seconds=400)
        assert done.code == 0, done.err
        tables[:] = set(calibration_tables()) - begun
        assert done.json("run")["clock"] == ("modelled" if engine == "native" else "counted")
        seconds.append(sum(done.json("run")["device_seconds"].values()))
    assert len(tables) == 1
    assert seconds[0] == pytest.approx(seconds[1], rel=0.03)


def calibration_tables() -> list[Path]:
    return list(Paths.default().calibration.glob("*.json"))


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
        assert row.cycles is not None  # as many instructions as the guest's clock counts nanoseconds
        seen = statistics.median(step.total.instructions for step in row.cycles.steps)
        assert seen == pytest.approx(row.seconds.total * 1e9, rel=0.1)
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


def test_cycles_repeat_and_machines_and_processes_agree_on_them(workshop: VmWorkshop, tables: list[Path]) -> None:
    name = workshop.write("net.py", f"# {uuid.uuid4()}\n{NET.replace('3))', '10))')}")
    ratios = []
    for _ in range(2):
        batches = ["--input", "1x8x8", "--batches", "16,32", "--no-layers"]
        done = workshop.run("calibrate", f"{name}:build", *batches, "--json", seconds=400)
        assert done.code == 0, done.err
        report = done.json("calibrate")
        tables[:] = [Path(report["path"])]
        ratios.append([row["cycles_per_instruction"] for row in report["rows"]])
        assert all(row["cycles_spread"] < 0.05 for row in report["rows"])
    for one, other in zip(*ratios, strict=True):
        for phase, ratio in one.items():  # copying out so small a model is a tenth of a millisecond
            assert ratio == pytest.approx(other[phase], rel=0.25 if phase == "encode" else 0.03)
        assert all(0.5 < ratio < 10 for ratio in one.values())
    seconds = {
        (engine, core_model): device_seconds(workshop, str(name), engine, core_model)
        for engine in ("qemu", "native")
        for core_model in ("instructions", "cycles")
    }
    slower = seconds["native", "cycles"] / seconds["native", "instructions"]
    assert slower > 1.2
    assert seconds["qemu", "cycles"] / seconds["qemu", "instructions"] == pytest.approx(slower, rel=0.01)


def test_a_profiles_core_waits_longer_for_its_slower_memory(
    workshop: VmWorkshop, net: Path, tables: list[Path]
) -> None:
    ratios = []
    for profile in ("generic-a53", "raspberry-pi-3-b-plus"):
        model = [f"{net}:build", "--input", "1x8x8", "--batches", "16,32", "--no-layers"]
        done = workshop.run("calibrate", *model, "--profile", profile, "--json", seconds=400)
        assert done.code == 0, done.err
        report = done.json("calibrate")
        tables.append(Path(report["path"]))
        ratios.append([row["cycles_per_instruction"] for row in report["rows"]])
        assert report["profile"] == profile
    assert [load_table(path).core.partition(".")[0] for path in tables] == ["reference", "core"]
    for reference, own in zip(*ratios, strict=True):
        assert all(own[phase] > 1.03 * reference[phase] for phase in ("forward", "backward", "update"))


def device_seconds(workshop: VmWorkshop, net: str, engine: str, core_model: str) -> float:
    """Return the device seconds of one round."""
    array = ARRAY | {"name": NAME, "engine": engine, "core_model": core_model}
    job = {"model": f"{net}:build", "data": {"source": "digits"}, "rounds": 1, "batch_size": 16, "seed": 3}
    files = workshop.write("job.yaml", job), workshop.write("array.yaml", array)
    done = workshop.run("run", files[0], "--array", files[1], "--runs", workshop.runs, "--json", seconds=400)
    assert done.code == 0, done.err
    return float(sum(done.json("run")["device_seconds"].values()))
