"""The files of a reproduction: JSON, CSV and charts in a folder."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import msgspec

from firmware_agent.errors import EnvironmentUnfit
from host.reproduce.charts import draw_disturbance, draw_speedup
from host.reproduce.figures import HypertuneReport


def write_files(report: HypertuneReport, folder: Path) -> HypertuneReport:
    """Write the report into `folder`, which is made; return it with the names of the files.

    Raises:
        EnvironmentUnfit: a file cannot be written.
    """
    contents = {
        "scaling.csv": csv_of(report.scaling),
        "batches.csv": csv_of([row.figures for row in report.batches], chosen=[row.chosen for row in report.batches]),
        "disturbance.csv": csv_of(report.disturbed),
        "speedup.svg": draw_speedup(report.scaling, report.beside),
        "disturbance.svg": draw_disturbance(report.disturbed),
    }
    named = msgspec.structs.replace(report, files=[str(folder / name) for name in (*contents, "hypertune.json")])
    contents["hypertune.json"] = msgspec.json.format(msgspec.json.encode(named)) + b"\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        raise EnvironmentUnfit(f"{folder}: cannot be written ({error}); name another folder with --output") from error
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
