"""Profiles as YAML files: those that ship with the package, and the user's own.

A file gives each figure a value with its unit, and a source. One that names a `base` overrides single figures of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, create_model

from csd_emu.cycles.parameters import RANGES
from csd_emu.profiles.flash_geometry import FlashParameters
from csd_emu.profiles.profile import FigureBand, HostRatio, Power, Profile, Sourced
from csd_emu.util.config_files import Config, load_config
from csd_emu.util.paths import Paths
from firmware_agent.common import units
from firmware_agent.common.errors import ConfigurationError, UnitError

WATTS = {"W": 1.0, "mW": 1e-3, "kW": 1e3}
JOULES_PER_BYTE = {"J/B": 1.0, "mJ/B": 1e-3, "uJ/B": 1e-6, "nJ/B": 1e-9, "pJ/B": 1e-12}
_NUMBER: dict[str, float] = {}
_BUILT_IN = (
    *("newport", "solana", "generic-a53", "raspberry-pi-3-b-plus", "raspberry-pi-zero-2-w", "rk3399-little", "am625"),
    "xeon-4108",
)
_ENDS = "low", "high"
_Source = Annotated[str, Field(min_length=3, pattern=r"\S")]
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")


class _Entry(NamedTuple):
    """How a key of a file becomes a figure: its attribute and units, an example, its range, and whether it may lack."""

    attribute: str
    units: Mapping[str, float]
    example: str
    low: float = 0.0
    high: float = float("inf")
    may_be_low: bool = False
    optional: bool = False


_COMMON = {
    "cores": _Entry("cores", _NUMBER, "4", 1, may_be_low=True),
    "clock": _Entry("clock_hertz", units.HERTZ, "1.2 GHz"),
    "instructions_per_cycle": _Entry("instructions_per_cycle", _NUMBER, "1.0"),
    "parallel_efficiency": _Entry("parallel_efficiency", _NUMBER, "0.85", high=1),
    "dram": _Entry("dram_bytes", units.BYTES, "6 GiB"),
    "dram_bandwidth": _Entry("dram_bytes_per_second", units.BYTES_PER_SECOND, "6 GB/s", optional=True),
    "flash_bandwidth": _Entry("flash_bytes_per_second", units.BYTES_PER_SECOND, "2 GB/s"),
    "flash_latency": _Entry("flash_latency_seconds", units.SECONDS, "40 us", may_be_low=True),
    "link_bandwidth": _Entry("link_bytes_per_second", units.BYTES_PER_SECOND, "500 MB/s"),
    "link_latency": _Entry("link_latency_seconds", units.SECONDS, "50 us", may_be_low=True),
    "nvme_bandwidth": _Entry("nvme_bytes_per_second", units.BYTES_PER_SECOND, "3.9 GB/s"),
}
_POWER = {
    "idle_power": _Entry("idle_watts", WATTS, "6 W", may_be_low=True),
    "core_power": _Entry("core_watts", WATTS, "0.3 W", may_be_low=True),
    "dram_power": _Entry("dram_watts", WATTS, "2 W", may_be_low=True),
    "flash_energy": _Entry("flash_joules_per_byte", JOULES_PER_BYTE, "2 nJ/B", may_be_low=True),
    "link_energy": _Entry("link_joules_per_byte", JOULES_PER_BYTE, "0.1 nJ/B", may_be_low=True),
}
_RATIO = {f"ratio_{part}": _Entry(part, _NUMBER, "15") for part in ("low", "middle", "high")}
_PLAIN = _Entry("", _NUMBER, "1", may_be_low=True)
_CHASSIS = {"chassis_power": _Entry("chassis_watts", WATTS, "100 W", may_be_low=True)}


class BandSection(Config):
    """A figure's plausible range, from `low` to `high`, and where it comes from."""

    low: float | str
    high: float | str
    source: Annotated[str, Field(min_length=3, pattern=r"^[^{}]*[^{}\s][^{}]*$")]


class ProfileFigure(Config):
    """A figure in a profile file: a number, with a unit where it has one, and where it comes from.

    `band` is its plausible range.
    """

    value: float | str
    source: _Source
    band: BandSection | None = None


class CoreFigure(Config):
    """A parameter of the core model in a profile file: a whole number in the unit of its name, and where it is from."""

    value: int
    source: _Source


class FlashFigure(Config):
    """A parameter of the flash model in a profile file: whole, but for a share, and in the unit of its name."""

    value: int | float
    source: _Source
    band: BandSection | None = None


class _Head(Config):
    """What a profile file says beside its figures."""

    base: str | None = None
    kind: Literal["drive", "host"] | None = None


_OPTIONAL: Any = (ProfileFigure | None, None)
_KEYS = dict.fromkeys(_COMMON | _POWER | _RATIO | _CHASSIS, _OPTIONAL)
# The profile's own figures say the others.
_CORE: Any = {
    name: (CoreFigure | None, None) for name in RANGES if name not in ("clock_megahertz", "dram_megabytes_per_second")
}
CoreSection = create_model("CoreSection", __base__=Config, **_CORE)
_KEYS["core"] = CoreSection | None, None
_FLASH: Any = {
    each.name: (FlashFigure | None, None) for each in fields(FlashParameters) if each.name != "link_bytes_per_second"
}
FlashSection = create_model("FlashSection", __base__=Config, **_FLASH)
_KEYS["flash"] = FlashSection | None, None
# An absent key is the base's; without a base all of a drive must be there.
ProfileFile = create_model("ProfileFile", __base__=_Head, **_KEYS)


def read_profile(path: Path, name: str, folder: Path | None = None, chain: tuple[str, ...] = ()) -> Profile:
    """Read one profile file.

    Args:
        path: the YAML file.
        name: what the profile is called.
        folder: where a base that does not ship with csd-emu is looked for; None for nowhere.
        chain: the profiles that led here through `base`.

    Raises:
        ConfigurationError: it cannot be read, a figure is missing, out of range or without a source, or a base leads
            back to the file itself.
    """
    if name in chain:
        raise ConfigurationError(f"{path}: base: profiles lead in a circle: {' -> '.join((*chain, name))}")
    file = load_config(path, ProfileFile)
    base = None if file.base is None else _find(file.base, folder, (*chain, name))
    kind = file.kind or (base.kind if base is not None else "drive")
    if base is not None and kind != base.kind:
        raise ConfigurationError(
            f"{path}: kind: {name!r} cannot be a {kind}, for its base {file.base!r} is a {base.kind}"
        )
    reader = _Reader(path, file)
    reader.refuse(*((["core", "flash"], "drive") if kind == "host" else (_RATIO | _CHASSIS, "host")))
    profile = Profile(
        name=name,
        kind=kind,
        **reader.section(_COMMON, base),
        power=Power(**reader.section(_POWER, base and base.power)),
        ratio=HostRatio(**reader.section(_RATIO, base and base.ratio)) if kind == "host" else None,
        chassis_watts=reader.section(_CHASSIS, base)["chassis_watts"] if kind == "host" else None,
        core=reader.parameters("core", base),
        flash=reader.parameters("flash", base),
    )
    try:
        if profile.core:
            _ = profile.core_parameters
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: core: {error}") from error
    try:
        _ = profile.flash_parameters
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    if profile.ratio and not profile.ratio.low.value <= profile.ratio.middle.value <= profile.ratio.high.value:
        raise ConfigurationError(f"{path}: ratio_middle: must lie between ratio_low and ratio_high")
    return profile


class _Reader:
    """Takes figures out of one parsed file."""

    def __init__(self, path: Path, file: _Head) -> None:
        self._path, self._file = path, file

    def section(self, entries: Mapping[str, _Entry], base: object) -> dict[str, Any]:
        """Return attribute -> figure for each of the `entries`, from the file or else from `base`; None for none."""
        return {entry.attribute: self._figure(key, entry, base) for key, entry in entries.items()}

    def parameters(self, section: Literal["core", "flash"], base: Profile | None) -> dict[str, Sourced]:
        """Return the parameters of a model that the file names, and those of `base` that it does not."""
        own = {
            name: Sourced(figure.value, figure.source, self._band(f"{section}.{name}", figure, figure.value, _PLAIN))
            for name, figure in getattr(self._file, section) or ()
            if figure is not None
        }
        return {**(getattr(base, section) if base is not None else {}), **own}

    def refuse(self, keys: Iterable[str], kind: str) -> None:
        """Raise if the file has one of the `keys`, which are of another `kind` of profile."""
        for key in keys:
            if getattr(self._file, key) is not None:
                raise ConfigurationError(f"{self._path}: {key}: only a {kind} has it; remove it, or set kind: {kind}")

    def _figure(self, key: str, entry: _Entry, base: object) -> Sourced | None:
        written: ProfileFigure | None = getattr(self._file, key)
        if written is not None:
            value = self._value(f"{key}.value", written.value, entry)
            return Sourced(value, written.source, self._band(key, written, value, entry))
        inherited: Sourced | None = getattr(base, entry.attribute, None)
        if inherited is None and not entry.optional:
            raise ConfigurationError(f"{self._path}: {key}: is missing; add it, or name a base that has it")
        return inherited

    def _band(self, key: str, figure: Config, value: float, entry: _Entry) -> FigureBand | None:
        if (written := getattr(figure, "band", None)) is None:
            return None
        low, high = (self._value(f"{key}.band.{end}", getattr(written, end), entry) for end in _ENDS)
        if not low <= value <= high:
            raise ConfigurationError(f"{self._path}: {key}.band: low, value and high must be in this order")
        return FigureBand(low, high, written.source)

    def _value(self, key: str, written: float | str, entry: _Entry) -> float:
        where = f"{self._path}: {key}"
        if entry.units:
            try:
                value = units.parse_quantity(written, dict(entry.units), entry.example)
            except UnitError as error:
                raise ConfigurationError(f"{where}: {error}") from error
        elif isinstance(written, str):
            raise ConfigurationError(f"{where}: {written!r} is not a number; write for example {entry.example}")
        else:
            value = float(written)
        above = value >= entry.low if entry.may_be_low else value > entry.low
        if not (above and value <= entry.high) or value == float("inf"):
            raise ConfigurationError(f"{where}: {written!r} is out of range; write for example {entry.example}")
        return value


@cache
def built_in_profiles() -> Mapping[str, Profile]:
    """Return the profiles that ship with csd-emu, by name."""
    folder = Path(__file__).parent
    return {name: read_profile(folder / f"{name}.yaml", name, folder) for name in _BUILT_IN}


def user_profiles(folder: Path) -> dict[str, Profile]:
    """Return the profiles in `folder`, by name; none if it does not exist.

    Raises:
        ConfigurationError: a file is no profile, or has the name of a built-in one.
    """
    found = {path.stem: path for path in sorted(folder.glob("*.yaml"), key=lambda path: path.stem)}
    for name, path in found.items():
        check_name(name, str(path))
    return {name: read_profile(path, name, folder) for name, path in found.items()}


def check_name(name: str, where: str) -> None:
    """Return if a user's profile may have this name.

    Raises:
        ConfigurationError: it is a built-in profile's, or has other characters than array files allow.
    """
    if name in _BUILT_IN:
        raise ConfigurationError(
            f"{where}: {name!r} is a built-in profile; choose another name, and base: {name} in it"
        )
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{where}: {name!r} cannot name a profile; use lower-case letters, digits and dashes, a letter first"
        )


def get_profile(name: str, folder: Path | None = None) -> Profile:
    """Return the profile called `name`: a built-in one, or the user's from `folder` (default: `Paths.profiles`).

    Raises:
        ConfigurationError: there is none, or its file is wrong.
    """
    built_in = built_in_profiles()
    return built_in[name] if name in built_in else _find(name, folder or Paths.default().profiles)


def _find(name: str, folder: Path | None, chain: tuple[str, ...] = ()) -> Profile:
    for place in (Path(__file__).parent, folder):
        path = place / f"{name}.yaml" if place is not None and _NAME.fullmatch(name) else None
        if path is not None and path.exists():
            return read_profile(path, name, folder, chain)
    own = sorted(path.stem for path in folder.glob("*.yaml")) if folder is not None else []
    known = ", ".join(dict.fromkeys([*_BUILT_IN, *own]))
    raise ConfigurationError(f"profile {name!r} is not known; choose one of: {known}")
