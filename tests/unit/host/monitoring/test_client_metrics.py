"""What a client program returned is told for each drive, wherever a run is shown."""

import re
from pathlib import Path
from typing import Any

import pytest

from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.records import DeviceRound
from host.monitoring.report.compare_baseline import compare
from host.monitoring.report.load_run import load_run
from host.monitoring.report.report_page import render, write_report
from host.monitoring.runs.run_tables import table_rows
from host.monitoring.trackers.tracker_listener import round_metrics
from host.policies.aggregation import Contribution
from host.training.rounds.strategy_rounds import mean_metrics
from tests.support.metrics import begun, scraped
from tests.support.pages import Page
from tests.support.records import device_round, round_record, write_run


def part(device: str, late: bool = False, **metrics: float) -> DeviceRound:
    return device_round(device, 10, PhaseSeconds(forward=1.0), straggler=late, metrics=metrics)


ROUNDS = [
    round_record([part("csd-00", acc=0.1), part("csd-01", acc=0.2), part("csd-02")]),
    round_record([part("csd-00", acc=0.25, steps=3.0), part("csd-01", late=True, acc=0.9)], round=2),
]


@pytest.mark.slow
def test_the_report_has_the_last_that_each_drive_returned_in_time(tmp_path: Path) -> None:
    folder = write_run(tmp_path, ROUNDS)
    assert write_report(folder).metrics == {"acc": {"csd-00": 0.25, "csd-01": 0.2}, "steps": {"csd-00": 3.0}}
    run = load_run(folder)
    page = Page(render(run, compare(run)))
    page.assert_sound()
    table = page.raw.partition("in which the drive was in time")[2].partition("</table>")[0]
    rows = [re.findall(r"<t[hd][^>]*>([^<]*)</t", row) for row in re.findall(r"<tr>(.*)</tr>", table)]
    assert rows == [
        ["drive", "acc", "steps"],
        ["csd-00", "0.25", "3"],
        ["csd-01", "0.2", ""],
        ["least", "0.2", "3"],
        ["mean", "0.225", "3"],
        ["most", "0.25", "3"],
    ]


def test_hostile_records_make_no_endless_table(tmp_path: Path) -> None:
    many: dict[str, Any] = {f"</td>{number}": 1e308 for number in range(1000)}
    assert len(write_report(write_run(tmp_path, [round_record([part("csd-00", **many)])])).metrics) == 64


def test_tables_trackers_and_prometheus_have_them() -> None:
    rows = table_rows("devices", ROUNDS)
    assert [(row["round"], row["device"], row.get("train_acc")) for row in rows] == [
        *((1, "csd-00", 0.1), (1, "csd-01", 0.2), (1, "csd-02", None)),
        *((2, "csd-00", 0.25), (2, "csd-01", 0.9)),
    ]
    told = round_metrics(ROUNDS[1])
    assert (told["drives/csd-00/train_acc"], told["drives/csd-00/train_steps"]) == (0.25, 3.0)
    state = begun()
    for record in ROUNDS:
        state.add_round(record)
    values = {("csd-00", "acc"): 0.25, ("csd-00", "steps"): 3.0, ("csd-01", "acc"): 0.2}
    assert scraped(state)["csd_client_metric"] == values


def test_a_number_has_one_name_in_rounds_tables_and_trackers() -> None:
    returned = {"train_acc": 0.5, "train_loss": 7.0, "norm": 2.0}
    contribution = Contribution({}, 1, 1, "csd-00", {}, returned, 0.5, {}, 7.0)
    record = round_record([part("csd-00", **returned)], metrics=mean_metrics([contribution]))
    assert record.metrics == {"train_acc": 0.5, "train_train_loss": 7.0, "train_norm": 2.0}
    (of_round,), (of_drive,) = table_rows("rounds", [record]), table_rows("devices", [record])
    told = round_metrics(record)
    for name, value in record.metrics.items():
        assert of_round[name] == of_drive[name] == told[f"drives/csd-00/{name}"] == value
    assert of_round["train_loss"] == record.train_loss


def test_no_metric_hides_a_rounds_own_figure() -> None:
    (row,) = table_rows("rounds", [round_record([part("csd-00")], metrics={"accuracy": 0.1, "lost": 9.0, "f1": 0.2})])
    assert (row["accuracy"], row["lost"], row["f1"]) == (0.9, 0, 0.2)
    assert (row["metrics_accuracy"], row["metrics_lost"]) == (0.1, 9.0)
