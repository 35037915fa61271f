"""How many drives a host is worth."""

from __future__ import annotations

from csd_emu.profiles import get_profile
from csd_emu.profiles.calibration import ModelTables
from csd_emu.profiles.profile import RATIO_DRIVE, RatioName


def host_worth(tables: ModelTables, host: str, ratio: RatioName) -> float:
    """Return how many `RATIO_DRIVE` a host is worth: of one that was measured, at its table's largest batch.

    Args:
        tables: of the model.
        host: its profile.
        ratio: which end of the profile's band, of one that was not measured.

    Raises:
        CalibrationError: a table is missing or damaged.
    """
    table, profile = tables.require(host), get_profile(host)
    unit, worth = table.speed_of(profile, ratio)
    if unit is not profile:
        return worth
    batch, drive = table.batches[-1], get_profile(RATIO_DRIVE)
    drive_seconds = tables.require(RATIO_DRIVE).device_seconds(batch, drive)
    return drive_seconds.total / table.device_seconds(batch, profile).total
