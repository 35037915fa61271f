"""`csd-emu recalibrate`: every shipped calibration table is measured anew, one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from csd_emu.profiles.calibration import CalibrationStore, CalibrationTable, load_table
from csd_emu.profiles.calibration.table_store import SHIPPED
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from firmware_agent.common.errors import CsdError
from firmware_agent.common.shipped_code import ShippedCode
from host.app.calibration_report import MeasureTable
from host.config.calibration_request import CalibrationRequest, make_request
from host.core.owned_files import check_writable


class Remeasured(msgspec.Struct, frozen=True):
    """One table.

    Attributes:
        table: name of its file.
        path: where the new one is.
        measured: false for one that was there already, of the same image and core model.
        worst_difference: of a step's seconds, |new / shipped - 1| of the batch size where it is largest.
        cycles: whether cycles were counted.
        wall_seconds: what it cost here.
    """

    table: str
    path: str
    measured: bool
    worst_difference: float
    cycles: bool
    wall_seconds: float


class RecalibrationReport(msgspec.Struct, frozen=True):
    """`csd-emu recalibrate`: all shipped tables, each measured anew."""

    tables: list[Remeasured]


def recalibrate(
    folder: Path, current: tuple[str, str] | None, measure: MeasureTable, paths: Paths, progress: Progress
) -> Iterator[Remeasured]:
    """Measure each shipped table's model, input and batch sizes again, and keep the table in `folder`.

    Args:
        folder: of the new tables; what is there is replaced.
        current: hash of the ARM image and digest of the core model, of which tables in `folder` stay; None: none stay.
        measure: one table.
        paths: of csd-emu's files.
        progress: shown the stages.

    Raises:
        EnvironmentUnfit: nothing can be written into the folder.
        CsdError: a table could not be measured; those before it are kept.
    """
    check_writable(folder / "table.json", "name another folder with --output", folder=True)
    for path in sorted(SHIPPED.glob("*.json")):
        begin, shipped, target = time.monotonic(), load_table(path), folder / path.name
        new = None if current is None else _kept(target, shipped, *current)
        measured = new is None
        if new is None:
            new = measure(request_of(shipped), paths, progress)
            CalibrationStore(folder).save(new, target)
        yield Remeasured(
            table=path.name,
            path=str(target),
            measured=measured,
            worst_difference=max(
                abs(row.seconds.total / before.seconds.total - 1)
                for row, before in zip(new.rows, shipped.rows, strict=True)
            ),
            cycles=all(row.cycles is not None for row in new.rows),
            wall_seconds=time.monotonic() - begin,
        )


def request_of(table: CalibrationTable) -> CalibrationRequest:
    """Return the request that a table was measured by: with layers and cycles."""
    spec = ShippedCode(table.model, None, dict(table.arguments))
    request = make_request(spec, table.input_shape, table.batches, seed=table.seed, layers=True)
    return replace(request, cycles=True)


def _kept(path: Path, shipped: CalibrationTable, image: str, core: str) -> CalibrationTable | None:
    """Return the table at `path` if it is of the same as the shipped one, measured with this image and core model."""
    try:
        found = load_table(path, shipped.key)
    except CsdError:
        return None
    counted = {None if row.cycles is None else row.cycles.core for row in found.rows}
    return found if (found.image, found.batches, counted) == (image, shipped.batches, {core}) else None
