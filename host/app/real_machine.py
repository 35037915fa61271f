"""Measuring on a real drive of an inventory, or on this machine as a host: a table by its own clock."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from csd_emu.config.array_file import ArrayConfig
from csd_emu.engines import Engine, make_engine
from csd_emu.engines.remote.inventory import resolve_members
from csd_emu.profiles.calibration import CalibrationTable, spread_of
from csd_emu.profiles.profile import RATIO_DRIVE
from csd_emu.util.config_files import parse_config
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from firmware_agent.common.errors import CalibrationError
from host.app.calibration_measurement import array_request, measure_table
from host.config.calibration_request import CalibrationRequest
from host.fleet.lifecycle import StartedArray
from host.fleet.temporary_array import run_on_engine

# Steps that scatter more than this (see `spread_of`) are no measurement: something else ran on the drive.
MOST_SPREAD = 0.1


@dataclass(frozen=True)
class RealMachine:
    """A drive of an inventory, or this machine, as an array of its own.

    Attributes:
        name: of the drive, for messages.
        profile: that its table will be of.
        config: of the array, resolved.
        threads: that compute.
    """

    name: str
    profile: str
    config: ArrayConfig
    threads: int = 1

    @classmethod
    def of_host(cls, profile: str, threads: int | None) -> RealMachine:
        """Return this machine as hosts of this profile; with None it takes every processor that it may use.

        Raises:
            ConfigurationError: it is no host's.
        """
        content = {
            "name": f"measure-{os.getpid()}",
            "engine": "native",
            "host": {"profile": profile},
            "devices": [{"profile": RATIO_DRIVE}],
        }
        return cls(
            name="this machine",
            profile=profile,
            config=parse_config(content, ArrayConfig, "--host"),
            threads=threads or len(os.sched_getaffinity(0)),
        )

    @classmethod
    def find(cls, inventory: Path, name: str) -> RealMachine:
        """Return the drive called `name`.

        Raises:
            ConfigurationError: the inventory cannot be read, or has no such drive.
        """
        content = {
            "name": f"measure-{os.getpid()}",
            "engine": "remote",
            "inventory": str(inventory.absolute()),
            "host": {"address": "0.0.0.0"},
            "devices": [{"drives": [name]}],
        }
        config = resolve_members(parse_config(content, ArrayConfig, "--drive"), Path(), str(inventory))
        # It gets made-up images to measure with, wherever its own lie.
        groups = [group.model_copy(update={"data": None}) for group in config.devices]
        if len(config.list_devices()) != 1:
            raise CalibrationError(f"{inventory}: {name!r} is a group of several drives; name one of them")
        (device,) = config.list_devices()
        return cls(device.name, device.profile, config.model_copy(update={"devices": groups}))

    def measure(self, request: CalibrationRequest, paths: Paths, progress: Progress) -> CalibrationTable:
        """Measure every batch size of `request`.

        Raises:
            EnvironmentUnfit: a drive is not installed, not enrolled, lent to an array, or cannot be reached.
            DeviceError: the model does not train there.
            CalibrationError: its steps scatter too much.
        """

        async def work(started: StartedArray, _: Engine) -> CalibrationTable:
            session = next(iter(started.fleet.sessions().values()))
            key = replace(request.key, core=self.profile)
            return await measure_table(session, replace(request, threads=self.threads), "", progress, key)

        array = array_request(self.config, request)
        table = run_on_engine(make_engine(self.config, paths), array, paths, progress, work)
        check_spread(table, self.name)
        return table


def check_spread(table: CalibrationTable, name: str) -> None:
    """Return if the steps of every batch agree well enough for a table.

    Raises:
        CalibrationError: those of one do not.
    """
    for row in table.rows:
        if (spread := spread_of([step.total for step in row.steps])) > MOST_SPREAD:
            raise CalibrationError(
                f"{name}: the {len(row.steps)} steps at batch {row.batch_size} scatter by {spread:.0%} of their "
                f"median {row.seconds.total:.4g} s, {MOST_SPREAD:.0%} is allowed; keep other work off it, or "
                "measure more with --steps; nothing was kept"
            )
