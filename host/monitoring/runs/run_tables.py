"""Tables of runs: a row a round, a drive and round, or a synchronous step."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from firmware_agent.common.errors import EnvironmentUnfit
from host.core.records import RoundRecord
from host.monitoring.service_sums import list_figures
from host.monitoring.report.load_run import RunData
from host.training.rounds.client_figures import name_figures

if TYPE_CHECKING:
    import pandas

Rows = list[dict[str, Any]]
TABLES = ("rounds", "devices", "steps")


def table_rows(table: str, rounds: Iterable[RoundRecord]) -> Rows:
    """Return the rows of one of `TABLES`; seconds are on the column ``clock``, of steps on that of their round."""
    if table == "rounds":
        return [_round_row(record) for record in rounds]
    rows = _device_rows if table == "devices" else _step_rows
    return [row for record in rounds for row in rows(record)]


def make_table(table: str, rounds: Iterable[RoundRecord]) -> pandas.DataFrame:
    """Return one of `TABLES` (see `table_rows`).

    Raises:
        EnvironmentUnfit: pandas is not installed.
    """
    return make_frame(table_rows(table, rounds))


def write_tables(runs: Sequence[RunData], folder: Path, kind: Literal["csv", "parquet"]) -> list[Path]:
    """Write the tables of runs, with columns ``run`` and ``seed``, and return the files; an empty table is none.

    Raises:
        EnvironmentUnfit: pyarrow is not installed, or a file cannot be written.
    """
    written = []
    for table in TABLES:
        rows = [
            {"run": run.path.name, "seed": run.job.get("seed"), **row}
            for run in runs
            for row in table_rows(table, run.rounds)
        ]
        if not rows:
            continue
        path = folder / f"{table}.{kind}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (_write_csv if kind == "csv" else _write_parquet)(rows, path)
        except ImportError as error:
            raise EnvironmentUnfit("Parquet needs pyarrow; pip install 'csd-emu[parquet]'") from error
        except OSError as error:
            raise EnvironmentUnfit(f"{path}: cannot be written ({error}); give another folder") from error
        written.append(path)
    return written


def _write_csv(rows: Rows, path: Path) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)


def _write_parquet(rows: Rows, path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    columns = dict.fromkeys(key for row in rows for key in row)
    parquet.write_table(pyarrow.Table.from_pylist([dict.fromkeys(columns) | row for row in rows]), path)


def _round_row(record: RoundRecord) -> dict[str, Any]:
    joules = [*(part.energy_joules for part in record.devices), *record.energy_joules.values()]
    names = ("round", "clock", "accuracy", "test_loss", "train_loss", "records_per_device_second")
    times = ("slowest_device_seconds", "start_seconds", "array_seconds", "wall_seconds", "samples")
    own = {
        **{name: getattr(record, name) for name in (*names, *times)},
        "joules": math.fsum(math.fsum(each.values()) for each in joules),
        "devices": len(record.devices),
        "lost": len(record.lost),
    }
    return own | {f"metrics_{name}" if name in own else name: value for name, value in record.metrics.items()}


def _device_rows(record: RoundRecord) -> Rows:
    names = ("device", "clock", "samples", "steps", "batch_size", "loss", "read_seconds", "receive_seconds")
    bytes_ = ("send_seconds", "flash_read_bytes", "sent_bytes", "received_bytes", "peak_memory_bytes", "straggler")
    called = name_figures(part.metrics for part in record.devices)
    return [
        {
            "round": record.round,
            **{name: getattr(part, name) for name in (*names, *bytes_)},
            "device_seconds": part.device_seconds.total,
            "joules": math.fsum(part.energy_joules.values()),
            **{f"service_{name}": value for name, value in list_figures(part.service).items()},
            **{called[name]: value for name, value in part.metrics.items()},
        }
        for part in record.devices
    ]


def _step_rows(record: RoundRecord) -> Rows:
    names = ("step", "loss", "learning_rate", "samples", "array_seconds", "slowest_seconds", "imbalance")
    return [{"round": record.round, **{name: getattr(step, name) for name in names}} for step in record.steps]


def make_frame(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Return rows as a DataFrame.

    Raises:
        EnvironmentUnfit: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise EnvironmentUnfit("tables of a run are pandas DataFrames; pip install 'csd-emu[notebook]'") from error
    return pandas.DataFrame(list(rows))
