"""Calibration: what a training step costs at a batch size, measured once on a drive, looked up ever after."""

from csd_emu.profiles.calibration.calibration_table import (
    FORMAT,
    CalibrationRow,
    CalibrationTable,
    Versions,
    median_step,
    row_mark,
)
from csd_emu.profiles.calibration.table_fit import spread_of
from csd_emu.profiles.calibration.table_key import REFERENCE_CORE, CalibrationKey
from csd_emu.profiles.calibration.table_store import CalibrationStore, CoreModel, ModelTables, load_table

__all__ = [
    "FORMAT",
    "REFERENCE_CORE",
    "CalibrationKey",
    "CalibrationRow",
    "CalibrationStore",
    "CalibrationTable",
    "CoreModel",
    "ModelTables",
    "Versions",
    "load_table",
    "median_step",
    "row_mark",
    "spread_of",
]
