"""The files of a reproduction: JSON, CSV and charts in a folder."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from csd_lab.reproduce.hypertune_result import HypertuneReport
from csd_lab.reproduce.placement_result import PlacementReport
from csd_lab.reproduce.planner_result import PlannerReport
from csd_lab.reproduce.reproduction_charts import draw_disturbance, draw_planner, draw_speedup
from host.core.owned_files import check_writable, write_whole

_REMEDY = "name another folder with --output"
R = TypeVar("R", HypertuneReport, PlacementReport, PlannerReport)


def write_hypertune(report: HypertuneReport, folder: Path) -> HypertuneReport:
    """Write tables, charts and the report itself; see `write_report`."""
    contents = {
        "verdicts.csv": csv_of(report.verdicts),
        "traffic.csv": csv_of(report.traffic),
        "scaling.csv": csv_of(report.scaling),
        "batches.csv": csv_of([row.figures for row in report.batches], chosen=[row.chosen for row in report.batches]),
        "disturbance.csv": csv_of(report.disturbed),
        "speedup.svg": draw_speedup(report.scaling, report.beside),
        "disturbance.svg": draw_disturbance(report.disturbed),
    }
    return write_report(report, "hypertune.json", contents, folder)


def write_placement(report: PlacementReport, folder: Path) -> PlacementReport:
    """Write tables and the report itself; see `write_report`."""
    contents = {"traffic.csv": csv_of(report.traffic), "placing.csv": csv_of(report.placing)}
    if report.ran:
        contents["ran.csv"] = csv_of(report.ran)
    return write_report(report, "placement.json", contents, folder)


def write_planner(report: PlannerReport, folder: Path) -> PlannerReport:
    """Write tables, the chart and the report itself; see `write_report`."""
    contents = {
        "choosing.csv": csv_of(report.choosing),
        "sensitivity.csv": csv_of(report.sensitivity),
        "planner.svg": draw_planner(report.choosing, report.sensitivity, report.beside[0].published),
    }
    return write_report(report, "planner.json", contents, folder)


def check_output(folder: Path | None) -> None:
    """Return if `write_report` can write into a folder, which is made, before anything is worked out; None: of course.

    Raises:
        EnvironmentUnfit: it cannot.
    """
    if folder is not None:
        check_writable(folder / "report", _REMEDY, folder=True)


def write_report(report: R, name: str, contents: Mapping[str, bytes], folder: Path) -> R:
    """Write `contents` and the report, as `name`, into `folder`, which is made; return it with the files' names.

    Raises:
        EnvironmentUnfit: a file cannot be written.
    """
    named = msgspec.structs.replace(report, files=[str(folder / each) for each in (*contents, name)])
    report_json = msgspec.json.format(msgspec.json.encode(named)) + b"\n"
    for file, content in {**contents, name: report_json}.items():
        write_whole(folder / file, content, _REMEDY, folder=True)
    return named


def csv_of(rows: Sequence[msgspec.Struct], **columns: Sequence[object]) -> bytes:
    """Return `rows` of one kind, at least one, with further columns."""
    stream = io.StringIO()
    fields = rows[0].__struct_fields__
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*fields, *columns])
    for number, row in enumerate(rows):
        writer.writerow([*(getattr(row, name) for name in fields), *(values[number] for values in columns.values())])
    return stream.getvalue().encode()
