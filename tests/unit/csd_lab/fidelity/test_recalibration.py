import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from csd_emu.profiles.calibration import CalibrationTable, load_table
from csd_emu.profiles.calibration.table_store import SHIPPED
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress, Silent
from csd_lab.fidelity.recalibration import Remeasured, recalibrate, request_of
from firmware_agent.common.errors import CalibrationError, EnvironmentUnfit
from host.config.calibration_request import CalibrationRequest

# Those whose models are quickly built.
NAMES = ("digits_cnn-1x8x8.json", "squeezenet-3x32x32-a3e96a9a.json")
TABLES = {name: load_table(SHIPPED / name) for name in NAMES}
COUNTED = {name for name, table in TABLES.items() if all(row.cycles for row in table.rows)}


@pytest.fixture(autouse=True)
def shipped(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("shipped")
    for name in NAMES:
        shutil.copy(SHIPPED / name, folder)
    monkeypatch.setattr("csd_lab.fidelity.recalibration.SHIPPED", folder)


class Measures:
    """Returns the shipped table itself; the core model counted where it has cycles."""

    def __init__(self, fails: str = "") -> None:
        self.asked: list[str] = []
        self.fails = fails

    def __call__(self, request: CalibrationRequest, _: Paths, __: Progress) -> CalibrationTable:
        name = request.key.file_name
        self.asked.append(name)
        if name == self.fails:
            raise CalibrationError(f"{name}: made to fail")
        assert request.layers
        assert request.cycles
        assert request.batches == tuple(TABLES[name].batches)
        return TABLES[name]


def run(folder: Path, measure: Measures, current: tuple[str, str] | None = None) -> Iterator[Remeasured]:
    return recalibrate(folder, current, measure, Paths(folder, folder, folder), Silent())


def current_of(name: str) -> tuple[str, str]:
    cycles = TABLES[name].rows[0].cycles
    assert cycles is not None
    return TABLES[name].image, cycles.core


def test_every_shipped_table_is_measured_with_what_it_was_measured_with(tmp_path: Path) -> None:
    measure = Measures()
    done = list(run(tmp_path, measure))
    assert measure.asked == list(TABLES)
    assert all(each.measured and each.worst_difference == 0 for each in done)
    assert {each.table for each in done if each.cycles} == COUNTED
    assert {path.name: load_table(path) for path in tmp_path.glob("*.json")} == TABLES


def test_a_folder_that_takes_no_table_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    measure = Measures()
    with pytest.raises(EnvironmentUnfit, match=r"cannot be written \(File exists\); name another folder"):
        list(run(tmp_path / "file", measure))
    assert measure.asked == []


def test_what_is_there_of_this_image_and_core_stays_when_it_goes_on(tmp_path: Path) -> None:
    name = sorted(COUNTED)[0]
    image, core = current_of(name)
    with pytest.raises(CalibrationError, match="made to fail"):
        list(run(tmp_path, Measures(fails=list(TABLES)[-1])))
    first = Measures()
    done = list(run(tmp_path, first, (image, core)))
    kept = {each.table for each in done if not each.measured}
    assert name in kept <= COUNTED
    assert set(first.asked) == set(TABLES) - kept
    for other in ((image, core), (image, "another"), ("another", core)):
        if other == (image, core):
            (tmp_path / name).write_text("{}", encoding="utf-8")  # damaged
        again = Measures()
        list(run(tmp_path, again, other))
        assert name in again.asked


def test_a_table_of_other_batches_is_measured_again(tmp_path: Path) -> None:
    name = sorted(COUNTED)[0]
    table = TABLES[name]
    (tmp_path / name).write_bytes(msgspec.json.encode(msgspec.structs.replace(table, rows=table.rows[:-1])))
    measure = Measures()
    list(run(tmp_path, measure, current_of(name)))
    assert name in measure.asked


@pytest.mark.parametrize("name", TABLES)
def test_a_tables_request_is_of_the_same_key(name: str) -> None:
    assert request_of(TABLES[name]).key == TABLES[name].key
