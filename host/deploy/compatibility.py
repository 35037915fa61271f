"""Facts that `probe` finds on a drive, and whether the agent, and in which form, fits it. Pure."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from firmware_agent.common.errors import DriveUnfit
from firmware_agent.common.units import format_bytes

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


def dotted(version: Version) -> str:
    """Return a version as text, such as ``6.1.0``."""
    return ".".join(map(str, version))


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


MACHINES = ("aarch64", "arm64")
# The manylinux tag of the drives' wheels, and the oldest kernel that the root file system's C library runs on.
WHEELS_GLIBC, ROOTFS_KERNEL = (2, 28), (3, 7)
NEEDED_TOOLS = ("tar", "gzip", "sha256sum", "dd", "awk")
# Certificates are valid in these years.
_VALID = (datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC), datetime.datetime(2099, 1, 1, tzinfo=datetime.UTC))
_SKEW_SECONDS = 60.0


class Form(Enum):
    """How the agent is installed: into the drive's own system, or with a root file system of ours, in a chroot."""

    WHEELS = "wheels"
    ROOTFS = "rootfs"


@dataclass(frozen=True)
class DriveRequirements:
    """What an installation asks of a drive.

    Attributes:
        pythons: minor versions for which there is a lock file, as (3, 11).
        memory_bytes: DRAM below which torch does not fit.
        disk_bytes: of a form: the copied bundle and what is unpacked from it; assumed until the bundle is made.
    """

    pythons: frozenset[tuple[int, int]] = frozenset({(3, 10), (3, 11), (3, 12), (3, 13)})
    memory_bytes: int = 2**30 - 2**27  # the kernel keeps some of a nominal GiB to itself
    disk_bytes: dict[Form, int] = field(
        default_factory=lambda: {Form.WHEELS: 1_100_000_000, Form.ROOTFS: 1_500_000_000}
    )


@dataclass(frozen=True)
class Fitness:
    """The verdict on a drive.

    Attributes:
        form: in which the agent would be installed; None: it cannot be.
        python: that would run it, if the form is wheels.
        problems: what does not fit, each with its remedy; empty if there is a form.
        notes: what is worth knowing but hinders nothing.
    """

    form: Form | None
    python: Python | None = None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def judge(facts: Facts, needs: DriveRequirements, server_seconds: float, forced: Form | None = None) -> Fitness:
    """Return how the agent would be installed on a drive, or why it cannot be.

    Wheels go before the root file system where both fit: they are smaller and run as an ordinary process.

    Args:
        facts: of the drive.
        needs: of the installation.
        server_seconds: this server's clock when the drive was probed, in seconds since 1970.
        forced: the user's own choice of a form.
    """
    common, notes = _common(facts, needs, server_seconds), _notes(facts, server_seconds)
    python = choose_python(facts, needs)
    hindrances = {Form.WHEELS: _wheels(facts, needs, python), Form.ROOTFS: _rootfs(facts, needs)}
    forms = list(Form) if forced is None else [forced]
    fitting = [form for form in forms if not hindrances[form]]
    if common or not fitting:
        ways = tuple(problem for form in forms for problem in hindrances[form]) if not fitting else ()
        return Fitness(None, None, common + tuple(dict.fromkeys(ways)), notes)
    if (form := fitting[0]) is Form.ROOTFS and forced is None:
        notes = (*hindrances[Form.WHEELS], *notes)
    return Fitness(form, python if form is Form.WHEELS else None, (), notes)


def choose_python(facts: Facts, needs: DriveRequirements) -> Python | None:
    """Return the newest 64-bit Python of the drive that there is a lock file for."""
    fit = [python for python in facts.pythons if python.version[:2] in needs.pythons and python.bits == 64]
    return max(fit, key=lambda python: python.version, default=None)


def _that_hold(sayings: Mapping[str, object]) -> tuple[str, ...]:
    """Return what is so of a drive: those that `sayings` map to something true."""
    return tuple(saying for saying, holds in sayings.items() if holds)


def _common(facts: Facts, needs: DriveRequirements, server_seconds: float) -> tuple[str, ...]:
    """Return what hinders any form."""
    missing = [tool for tool in NEEDED_TOOLS if tool not in facts.tools]
    now = datetime.datetime.fromtimestamp(server_seconds, datetime.UTC)
    first, end = (moment.timestamp() for moment in _VALID)
    return _that_hold(
        {
            f"its processor is {facts.machine}, the agent's torch is built for aarch64: leave the drive out": (
                facts.machine not in MACHINES
            ),
            "its processor has no Advanced SIMD, without which torch does not run: leave the drive out": (
                facts.machine in MACHINES and facts.cpu_flags and "asimd" not in facts.cpu_flags
            ),
            f"it has {format_bytes(facts.memory_bytes or 0)} of DRAM, torch needs {format_bytes(needs.memory_bytes)}: "
            "leave the drive out": facts.memory_bytes is not None and facts.memory_bytes < needs.memory_bytes,
            f"it has no {', '.join(missing)}: install them, or a busybox that has them": missing,
            f"{facts.user or 'its user'} has no root rights: allow sudo without a password, or log in as root": (
                facts.root == "no"
            ),
            **{
                f"{facts.folder_mount} is mounted {option}: make it {remedy}, or set `folder` to another place": (
                    option in facts.folder_options
                )
                for option, remedy in (("ro", "writable"), ("noexec", "executable"))
            },
            "the inventory's data path is not there: correct `data`, or leave it away": facts.data_there is False,
            f"its clock is outside of the years 1970 to 2098, no certificate is valid then: date -s '{now:%F %T}'": (
                facts.unix_seconds is not None and not first <= facts.unix_seconds < end
            ),
        }
    )


def _wheels(facts: Facts, needs: DriveRequirements, python: Python | None) -> tuple[str, ...]:
    libc = f"{facts.libc} {dotted(facts.libc_version)}".strip() or "unknown"
    pythons = ", ".join(dotted(one.version) for one in facts.pythons) or "none"
    wanted = ", ".join(map(dotted, sorted(needs.pythons)))
    return _that_hold(
        {
            f"its C library is {libc}, wheels need glibc {dotted(WHEELS_GLIBC)} or newer": (
                facts.libc != "glibc" or facts.libc_version < WHEELS_GLIBC
            ),
            f"its Python is {pythons}, wheels need one of {wanted} (64 bits)": python is None,
            **_space(facts, needs, Form.WHEELS),
        }
    )


def _rootfs(facts: Facts, needs: DriveRequirements) -> tuple[str, ...]:
    return _that_hold(
        {
            "it has no chroot for our root file system: install coreutils, or a busybox that has it": (
                "chroot" not in facts.tools
            ),
            f"its kernel is {facts.kernel_text}, our root file system needs {dotted(ROOTFS_KERNEL)} or newer: "
            "upgrade it": facts.kernel and facts.kernel < ROOTFS_KERNEL,
            **_space(facts, needs, Form.ROOTFS),
        }
    )


def _space(facts: Facts, needs: DriveRequirements, form: Form) -> dict[str, bool]:
    free, needed = facts.folder_free_bytes, needs.disk_bytes[form]
    return {
        f"{format_bytes(free or 0)} are free on {facts.folder_mount or 'its disk'}, the form {form.value} needs "
        f"{format_bytes(needed)}: free some, or set `folder` to a place with more": free is not None and free < needed
    }


def _notes(facts: Facts, server_seconds: float) -> tuple[str, ...]:
    skew_seconds = 0.0 if facts.unix_seconds is None else facts.unix_seconds - server_seconds
    return _that_hold(
        {
            f"its clock is {skew_seconds:+.0f} s off this server's; device time does not mind": (
                abs(skew_seconds) > _SKEW_SECONDS
            ),
            "it has no systemd: a supervised process starts the agent": facts.init != "systemd",
            "it has no power sensor: its watts come from the profile's model": not facts.power_sensors,
        }
    )
