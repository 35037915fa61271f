"""Debian packages for any architecture, resolved and downloaded by apt in a world of its own.

The machine's own package database is neither read nor changed, and root is not needed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import unquote

from csd_emu.image.digest import file_sha256
from csd_emu.image.mirrors import MIRROR_VARIABLE, find_keyring, find_mirrors
from csd_emu.image.runner import Runner, find_tool
from firmware_agent.errors import ImageError

GUEST_ARCHITECTURE = "arm64"
_DEBIAN_ARCHITECTURES = {"x86_64": "amd64", "aarch64": GUEST_ARCHITECTURE}


@dataclass(frozen=True)
class Package:
    """A package file: its name as downloaded and its SHA-256."""

    file: str
    sha256: str

    @property
    def label(self) -> str:
        """Name and version, such as ``bash 5.2.15-2+b13``."""
        name, version, *_ = self.file.split("_")
        return f"{name} {unquote(version)}"


def machine_architecture() -> str:
    """Return Debian's name for this machine's architecture."""
    machine = platform.machine()
    return _DEBIAN_ARCHITECTURES.get(machine, machine)


class PackageCache:
    """Packages of one Debian release and architecture, kept in a folder."""

    def __init__(self, folder: Path, suite: str, architecture: str, runner: Runner) -> None:
        self._folder = folder / f"debian-{suite}-{architecture}"
        self._suite, self._architecture, self._runner = suite, architecture, runner

    @property
    def archives(self) -> Path:
        """Where the package files are."""
        return self._folder / "archives"

    def fetch(self, install: Sequence[str], without: Sequence[str], *, refresh: bool = False) -> list[Package]:
        """Return the packages `install` and all they depend on, downloaded and checked.

        An earlier answer whose files are all there is used again without any network, unless `refresh` is set.

        Args:
            install: package names.
            without: names that apt takes for installed.
            refresh: ask the mirror for newer versions.

        Raises:
            EnvironmentUnfit: a tool or Debian's keyring is missing.
            ImageError: the mirror cannot be reached, has no such package, or a file is damaged.
        """
        known = self._folder / f"resolved-{_key(install, without)}.json"
        packages = None if refresh else self._recall(known)
        if packages is None:
            packages = self._download(install, without)
            known.write_text(json.dumps([asdict(package) for package in packages], indent=1), encoding="utf-8")
        return packages

    def _recall(self, known: Path) -> list[Package] | None:
        try:
            packages = [Package(**entry) for entry in json.loads(known.read_text(encoding="utf-8"))]
        except (OSError, ValueError, TypeError):
            return None
        return None if self._damaged(packages) else packages

    def _damaged(self, packages: list[Package]) -> list[Path]:
        paths = {self.archives / package.file: package.sha256 for package in packages}
        return [path for path, sha256 in paths.items() if not path.is_file() or file_sha256(path) != sha256]

    def _download(self, install: Sequence[str], without: Sequence[str]) -> list[Package]:
        apt = self._prepare(without)
        environment = {"APT_CONFIG": str(self._folder / "apt.conf")}
        address = f"Debian packages from {find_mirrors().main}"
        remedy = f"check the network, or name another mirror in {MIRROR_VARIABLE}"
        try:
            self._runner.run([apt, "update"], f"fetch the list of {address}", environment=environment)
            packages = self._resolve(apt, install, environment)
            for path in self._damaged(packages):
                path.unlink(missing_ok=True)
            command = [apt, "install", "--yes", "--download-only", *install]
            self._runner.run(command, f"fetch {address}", environment=environment)
        except ImageError as error:
            self._runner.check()
            raise ImageError(f"{error}; {remedy}") from error
        if damaged := self._damaged(packages):
            raise ImageError(f"{damaged[0]}: damaged after download from {address}; {remedy}")
        return packages

    def _resolve(self, apt: str, install: Sequence[str], environment: dict[str, str]) -> list[Package]:
        # apt does not list what it already has, so it is shown an empty folder.
        empty = self._folder / "empty"
        command = [apt, "-o", f"Dir::Cache::archives={empty}", "install", "--yes", "--print-uris", *install]
        lines = self._runner.run(command, "choose Debian packages", environment=environment).splitlines()
        fields = [line.split() for line in lines if line.startswith("'")]
        return [Package(name, digest.removeprefix("SHA256:")) for _, name, _, digest in fields]

    def _prepare(self, without: Sequence[str]) -> str:
        apt = find_tool("apt-get", "apt")
        for part in ("lists/partial", "archives/partial", "empty/partial"):
            (self._folder / part).mkdir(parents=True, exist_ok=True)
        (self._folder / "debian.sources").write_text(find_mirrors().sources(self._suite, find_keyring()), encoding="utf-8")
        (self._folder / "status").write_text(_status(without), encoding="utf-8")
        kept = self._runner.run([find_tool("apt-config", "apt"), "dump", "Acquire"], "read apt's settings")
        (self._folder / "apt.conf").write_text(self._settings(kept), encoding="utf-8")
        return apt

    def _settings(self, machine_settings: str) -> str:
        """Return apt's configuration: of the machine's only how to reach the network, so that no hook of it runs."""
        kept = [line for line in machine_settings.splitlines() if not line.startswith("Acquire::IndexTargets")]
        own = {
            "Dir::Etc::main": "/dev/null",
            "Dir::Etc::parts": "/dev/null",
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::Etc::sourcelist": self._folder / "debian.sources",
            "Dir::State": self._folder,
            "Dir::State::lists": self._folder / "lists",
            "Dir::State::status": self._folder / "status",
            "Dir::Cache": self._folder,
            "Dir::Cache::archives": self.archives,
            "Dir::Cache::pkgcache": "",
            "Dir::Cache::srcpkgcache": "",
            "APT::Architecture": self._architecture,
            "APT::Architectures": self._architecture,
            "APT::Install-Recommends": "false",
            "APT::Update::Error-Mode": "any",
            "Acquire::ForceHash": "SHA256",
            "Acquire::Languages": "none",
        }
        if os.geteuid() == 0 and not _entered_by_all(self._folder):
            own["APT::Sandbox::User"] = "root"
        return "\n".join([*kept, *(f'{name} "{value}";' for name, value in own.items()), ""])


def _entered_by_all(folder: Path) -> bool:
    """Whether apt's unprivileged download user can reach `folder`."""
    return all(path.stat().st_mode & 0o001 for path in (folder, *folder.parents))


def _key(install: Sequence[str], without: Sequence[str]) -> str:
    return hashlib.sha256(repr((sorted(install), sorted(without))).encode()).hexdigest()[:12]


def _status(without: Sequence[str]) -> str:
    """Return a dpkg status in which one installed package provides all of `without`, in any version."""
    provides = ", ".join(f"{name} (= 99:1)" for name in without)
    return (
        "Package: csd-emu-without\nStatus: install ok installed\nMaintainer: csd-emu\nArchitecture: all\nVersion: 1\n"
        f"Multi-Arch: foreign\nProvides: {provides}\nDescription: what the image does without\n\n"
    )
