"""What drives run on and whose their seconds are: the registry of engines, and keys of the array file."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

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
        drives: so many of one profile, in place of the file's groups.
        profile: of these; `DEFAULT_PROFILE` if their number is given alone.
    """

    engine: str | None = None
    clock: Clock | None = None
    drives: int | None = None
    profile: str | None = None

    @property
    def keys(self) -> dict[str, Any]:
        """The keys of an array file that they replace."""
        keys: dict[str, Any] = {
            name: value for name, value in (("engine", self.engine), ("clock", self.clock)) if value is not None
        }
        if self.drives is not None or self.profile is not None:
            keys["devices"] = group_of(self.drives, self.profile)
        return keys

    @property
    def options(self) -> str:
        """The options of the command line that they came from."""
        return ", ".join(f"--{name}" for name, value in self._asdict().items() if value is not None)


DEFAULT_DRIVES, DEFAULT_PROFILE = 2, "newport"


def group_of(drives: int | None, profile: str | None) -> list[dict[str, Any]]:
    """Return the groups of an array of equal drives."""
    return [{"profile": profile or DEFAULT_PROFILE, "count": DEFAULT_DRIVES if drives is None else drives}]


AS_IN_FILE = ArrayChanges()
