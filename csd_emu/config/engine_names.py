"""The registry of engines, and the key `engine` of the array file that names one."""

from __future__ import annotations

from typing import Annotated

from csd_emu.util.config_files import RegisteredName
from csd_emu.util.registry import Registry

ENGINE = Registry(
    word="engine",
    group="csd_emu.engines",
    package="csd_emu.engines",
    needed=(
        *("of_array", "surroundings", "hypervisor_of", "prepare", "start", "find", "alive", "wait_ready", "inject"),
        *("stop", "list_devices", "list_arrays", "sweep", "close"),
    ),
)


EngineName = Annotated[str, RegisteredName(ENGINE)]
