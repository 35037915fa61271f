"""The calibration tables: those that ship with the package, and the user's own, which go first."""

from __future__ import annotations

import functools
import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from csd_emu.profiles import get_profile
from csd_emu.profiles.calibration.calibration_table import CalibrationTable
from csd_emu.profiles.calibration.table_check import check_table, encode_table, parse_table
from csd_emu.profiles.calibration.table_key import REFERENCE_CORE, CalibrationKey, core_name
from csd_emu.profiles.profile import RATIO_DRIVE
from csd_emu.util.record_shape import Shape
from firmware_agent.common.atomic_files import make_folder, read_file, replace_file
from firmware_agent.common.errors import CalibrationError, ConfigurationError
from firmware_agent.common.shipped_code import ShippedCode

# What a reference core's nanosecond stands for: an instruction, or a cycle of the core model.
CoreModel = Literal["instructions", "cycles"]
SHIPPED = Path(__file__).parent / "tables"

_MOST_BYTES = 4 << 20
log = logging.getLogger(__name__)


class CalibrationStore:
    """Finds and keeps tables, one file each."""

    def __init__(
        self, user: Path, shipped: Path = SHIPPED, core_model: CoreModel = "instructions", task: str = ""
    ) -> None:
        """Keep the user's tables in the folder `user`, which is made when there is one to keep.

        Tables are found as `CalibrationTable.in_instructions` or `CalibrationTable.in_cycles` has them; those of `task`
        (see `CalibrationKey`) go first.
        """
        self._user, self._shipped, self._core_model, self._task = user, shipped, core_model, task

    def counting(self, core_model: CoreModel) -> CalibrationStore:
        """Return the same store with another core model."""
        return CalibrationStore(self._user, self._shipped, core_model, self._task)

    def of_task(self, task: str) -> CalibrationStore:
        """Return the same store for a job's task: of a model without a table of that, the plain one is found."""
        return CalibrationStore(self._user, self._shipped, self._core_model, task)

    def find(self, spec: ShippedCode, input_shape: Shape, profile: str | None = None) -> CalibrationTable | None:
        """Return the table of a model at an input shape, or None.

        A table that was measured on a real drive of `profile`, or on such a host, goes first, then, in cycles, one of
        the profile's own core, then one of the reference core; the user's before the shipped one. Of a host that was
        not measured it is the one of `RATIO_DRIVE`.

        Raises:
            CalibrationError: the table's file cannot be read, breaks a rule, or is of something else.
        """
        return None if (path := self._path(spec, input_shape, profile)) is None else self._load(*path)

    def find_counted(
        self, spec: ShippedCode, input_shape: Shape, profile: str
    ) -> tuple[CalibrationTable, CalibrationTable] | None:
        """Return what virtual machines of `profile` were counted at, in instructions and in cycles, or None.

        Raises:
            CalibrationError: as `find`, or the cycles were not measured.
        """
        if (path := self.counting("cycles")._path(spec, input_shape, profile, real=False)) is None:
            return None
        table = load_table(*path)
        return table.in_instructions(), table.in_cycles()

    def require(self, spec: ShippedCode, input_shape: Shape, profile: str | None = None) -> CalibrationTable:
        """Return what `find` returns; a table that is missing is an error that says how to make it.

        Raises:
            CalibrationError: as `find`, or there is none.
        """
        return self.locate(spec, input_shape, profile)[1]

    def of(self, spec: ShippedCode, input_shape: Shape) -> ModelTables:
        """Return the tables of one model on images of one shape."""
        return ModelTables(self, spec, input_shape)

    def locate(
        self, spec: ShippedCode, input_shape: Shape, profile: str | None = None
    ) -> tuple[Path, CalibrationTable]:
        """Return what `require` returns, and the file that it is in."""
        if (path := self._path(spec, input_shape, profile)) is None:
            key = CalibrationKey.of(spec, input_shape)
            kind, model = ("records", "JOB.YAML") if self._task else ("images", f"{spec.name} --input {key.shape_text}")
            raise CalibrationError(
                f"model {spec.name!r} with {dict(key.arguments)} has no calibration table for {kind} of "
                f"{key.shape_text}; measure one with csd-emu calibrate {model}"
            )
        return path[0], self._load(*path)

    def _load(self, path: Path, key: CalibrationKey) -> CalibrationTable:
        table = load_table(path, key)
        return table.in_cycles() if self._core_model == "cycles" else table.in_instructions()

    def _path(
        self, spec: ShippedCode, input_shape: Shape, profile: str | None, real: bool = True
    ) -> tuple[Path, CalibrationKey] | None:
        drive = RATIO_DRIVE if profile and get_profile(profile).kind == "host" else profile
        own = self._own_core(drive)
        measured = [name for name in (profile, drive) if name and real]
        keys = [
            CalibrationKey.of(spec, input_shape, core, task)
            for task in dict.fromkeys((self._task, ""))
            for core in dict.fromkeys((*measured, own, REFERENCE_CORE))
        ]
        paths = ((folder / key.file_name, key) for key in keys for folder in (self._user, self._shipped))
        found = next((each for each in paths if each[0].exists()), None)
        if drive and found and found[1].core == REFERENCE_CORE != own and get_profile(drive).core:
            _warn_once(
                f"profile {drive}: the cycles of {spec.name!r} are the reference core's, for those of its own core "
                f"were not counted; count them with csd-emu calibrate {spec.name} --input {keys[0].shape_text} "
                f"--profile {drive}"
            )
        return found

    def _own_core(self, profile: str | None) -> str:
        """Return the core of the tables in which a profile's own cycles are; without any, the reference core."""
        if profile is not None and self._core_model == "cycles":
            with suppress(ConfigurationError):
                return core_name(get_profile(profile).core_parameters)
        return REFERENCE_CORE

    def save(self, table: CalibrationTable, path: Path | None = None) -> Path:
        """Write the table among the user's own, or to `path`, in one step; return where.

        Raises:
            CalibrationError: it breaks a rule; what was there stays.
        """
        path = path or self._user / table.key.file_name
        check_table(table, str(path))
        make_folder(path.parent, 0o755)
        replace_file(path, encode_table(table), 0o644)
        return path


@functools.cache
def _warn_once(message: str) -> None:
    log.warning("%s", message)


@dataclass(frozen=True)
class ModelTables:
    """The tables of one model on images of one shape.

    Attributes:
        store: where they are.
        spec: the model.
        input_shape: (channels, height, width) of an image.
    """

    store: CalibrationStore
    spec: ShippedCode
    input_shape: Shape

    def require(self, profile: str) -> CalibrationTable:
        """Return the table of a profile; see `CalibrationStore.require`."""
        return self.store.require(self.spec, self.input_shape, profile)


def load_table(path: Path, key: CalibrationKey | None = None) -> CalibrationTable:
    """Return the table in the file `path`, which must be of `key` if that is given.

    Raises:
        CalibrationError: it cannot be read, breaks a rule, or is of something else.
    """
    try:
        data = read_file(path, _MOST_BYTES)
    except OSError as error:
        raise CalibrationError(f"{path}: cannot be read ({error})") from error
    table = parse_table(data, str(path))
    if key is not None and table.key != key:
        raise CalibrationError(
            f"{path}: is of {_words(table.key)}, not of {_words(key)}; give it its own name back, or remove it"
        )
    return table


def _words(key: CalibrationKey) -> str:
    source = f", source {key.source_sha256[:8]}" if key.source_sha256 else ""
    return f"{key.model} {dict(key.arguments)}{source} at {key.shape_text} on core {key.core}"
