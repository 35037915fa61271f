"""What drives run on and whose their seconds are: the registry of engines, and keys of the array file."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

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
Clock = Literal["auto", "modelled", "wall", "sampled"]


class ArrayChanges(NamedTuple):
    """What the command line has in place of an array file's keys; None leaves the file's.

    Attributes:
        engine: of all groups.
        clock: of native and virtual drives.
    """

    engine: str | None = None
    clock: Clock | None = None


AS_IN_FILE = ArrayChanges()
