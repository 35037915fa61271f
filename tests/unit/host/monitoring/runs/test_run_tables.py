"""Tables and trackers have every figure of a drive in service, and no column for one that serves nobody."""

import csv
from pathlib import Path

from host.monitoring.service_sums import list_figures
from host.monitoring.report.load_run import load_run
from host.monitoring.runs.run_tables import table_rows, write_tables
from host.monitoring.trackers.tracker_listener import round_metrics
from tests.support.records import array_rounds, service_figures, service_rounds, write_run

NAMES = ["csd-00", "csd-01"]


def test_a_row_and_a_tracker_have_them_all_by_name() -> None:
    (record,) = service_rounds(1, NAMES)
    row, told = table_rows("devices", [record])[1], round_metrics(record)
    figures = list_figures(service_figures(2))
    assert {name[8:]: value for name, value in row.items() if name.startswith("service_")} == figures
    known = {name: value for name, value in told.items() if name.startswith("drives/csd-01/service/")}
    assert known == {f"drives/csd-01/service/{name}": value for name, value in figures.items()}
    assert "second_p99_seconds" not in figures


def test_a_run_without_host_io_has_no_such_column(tmp_path: Path) -> None:
    def columns(folder: Path) -> list[str]:
        (path,) = (each for each in write_tables([load_run(folder)], folder, "csv") if each.stem == "devices")
        return next(csv.reader(path.read_text(encoding="utf-8").splitlines()))

    plain, served = (
        columns(write_run(tmp_path / name, rounds, devices=2))
        for name, rounds in (("plain", array_rounds(1, NAMES)), ("served", service_rounds(1, NAMES)))
    )
    assert set(served) - set(plain) == {f"service_{name}" for name in list_figures(service_figures())}
    assert not [name for name in round_metrics(array_rounds(1, NAMES)[0]) if "service" in name]
