"""Calibration: what a training step costs at a batch size, measured once on a drive, looked up ever after."""

from csd_emu.calibration.key import REFERENCE_CORE, CalibrationKey
from csd_emu.calibration.store import CalibrationStore, load_table
from csd_emu.calibration.table import FORMAT, CalibrationRow, CalibrationTable, Versions, median_step, row_mark

__all__ = [
    "FORMAT",
    "REFERENCE_CORE",
    "CalibrationKey",
    "CalibrationRow",
    "CalibrationStore",
    "CalibrationTable",
    "Versions",
    "load_table",
    "median_step",
    "row_mark",
]
