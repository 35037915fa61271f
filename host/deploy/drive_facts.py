"""Facts that `probe` finds on a drive, read from what its script wrote."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from firmware_agent.common.errors import DriveUnfit

SCRIPT = Path(__file__).with_name("probe.sh")
_KIBIBYTE = 1024

Version = tuple[int, ...]


@dataclass(frozen=True)
class Python:
    """A Python on the drive; `bits` is 32 or 64."""

    path: str
    version: Version
    bits: int


@dataclass(frozen=True)
class Facts:
    """A drive, as its own system describes it; None or empty: it could not be found out.

    Attributes:
        machine: as `uname -m`.
        kernel: version.
        kernel_text: as `uname -r`.
        os: name of the distribution.
        cores: of the processor.
        clock_hz: highest, as the kernel's cpufreq says.
        cpu_flags: as /proc/cpuinfo has them.
        memory_bytes, memory_free_bytes: DRAM.
        folder_free_bytes: below the folder of csd-emu; `folder_options` are the options of its mount.
        data_there: whether the data path of the inventory is there; None without one.
        data_free_bytes: on the disk of the data path.
        pythons: that run.
        libc: ``glibc`` or ``musl``.
        libc_version: of it.
        init: ``systemd``, ``initd`` or ``none``; `init_version` is systemd's.
        cgroup: 1 or 2.
        user, uid: as whom csd-emu logs in.
        root: ``yes``, ``sudo`` or ``no``.
        tools: of those that matter, the ones that are there.
        nvme: NVMe controllers and their models.
        power_sensors: files of the kernel that give watts, with the sensor's name.
        unix_seconds: the drive's clock.
        boot_id: changes with every boot.
    """

    machine: str
    kernel: Version = ()
    kernel_text: str = ""
    os: str = ""
    cores: int | None = None
    clock_hz: float | None = None
    cpu_flags: tuple[str, ...] = ()
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    folder_free_bytes: int | None = None
    folder_mount: str = ""
    folder_options: tuple[str, ...] = ()
    data_there: bool | None = None
    data_free_bytes: int | None = None
    pythons: tuple[Python, ...] = ()
    libc: str = ""
    libc_version: Version = ()
    init: str = "none"
    init_version: str = ""
    cgroup: int | None = None
    user: str = ""
    uid: int | None = None
    root: str = "no"
    tools: tuple[str, ...] = ()
    nvme: tuple[str, ...] = ()
    power_sensors: tuple[str, ...] = ()
    unix_seconds: int | None = None
    boot_id: str = ""


def parse_facts(drive: str, text: str) -> Facts:
    """Return the facts in what the script wrote.

    Raises:
        DriveUnfit: the script did not come to its end, or the machine is not named.
    """
    found = _values_by_key(text)

    def one(key: str) -> str:
        return found.get(key, [""])[0]

    if not one("end") or not one("machine"):
        raise DriveUnfit(
            f"drive {drive}: the probe ended before its time; log in and see whether /bin/sh, uname and sed are there"
        )
    libc, _, libc_version = one("libc").partition(" ")
    init, _, init_version = one("init").partition(" ")
    clock = _number(one("clock_khz"))
    return Facts(
        machine=one("machine"),
        kernel=read_version(one("kernel")),
        kernel_text=one("kernel"),
        os=one("os"),
        cores=_number(one("cores")) or None,
        clock_hz=None if clock is None else 1e3 * clock,
        cpu_flags=tuple(one("cpu_flags").split()),
        memory_bytes=_kib(one("memory_kib")),
        memory_free_bytes=_kib(one("memory_free_kib")),
        folder_free_bytes=_kib(one("folder_free_kib")),
        folder_mount=one("folder_mount"),
        folder_options=tuple(one("folder_options").split(",")) if one("folder_options") else (),
        data_there=one("data") == "there" if one("data") else None,
        data_free_bytes=_kib(one("data_free_kib")),
        pythons=_pythons(found.get("python", [])),
        libc=libc,
        libc_version=read_version(libc_version),
        init=init or "none",
        init_version=init_version,
        cgroup=_number(one("cgroup")),
        user=one("user"),
        uid=_number(one("uid")),
        root=one("root") or "no",
        tools=tuple(found.get("tool", [])),
        nvme=tuple(found.get("nvme", [])),
        power_sensors=tuple(found.get("power_sensor", [])),
        unix_seconds=_number(one("date")),
        boot_id=one("boot_id"),
    )


def _values_by_key(text: str) -> dict[str, list[str]]:
    """Return what the script wrote behind each key, as often as it came, in order."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and value:
            found.setdefault(key, []).append(value.strip())
    return found


def read_version(text: str) -> Version:
    """Return the numbers that a version begins with: ``6.1.0-18-arm64`` is (6, 1, 0)."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() else None


def _kib(text: str) -> int | None:
    number = _number(text)
    return None if number is None else number * _KIBIBYTE


def _pythons(lines: list[str]) -> tuple[Python, ...]:
    """Return those that said their version; a name that is another's link says the same and is left out."""
    pythons: dict[Version, Python] = {}
    for line in lines:
        path, _, rest = line.partition(" ")
        version, _, bits = rest.partition(" ")
        if read_version(version) and _number(bits):
            pythons.setdefault(read_version(version), Python(path, read_version(version), int(bits)))
    return tuple(pythons.values())
