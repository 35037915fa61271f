"""Debian packages for any architecture, resolved and downloaded by apt with a private configuration and cache.

The machine's own package database is neither read nor changed, and root is not needed. The mirrors are this machine's
own when it runs Debian.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from csd_emu.image.runner import Runner, find_tool
from csd_emu.util.file_hash import file_sha256
from firmware_agent.common.errors import EnvironmentUnfit, ImageError

# Overrides the machine's own mirror, and is needed where the machine is no Debian.
# The suites are expected at MIRROR/debian and MIRROR/debian-security.
MIRROR_VARIABLE = "CSD_EMU_DEBIAN_MIRROR"
_KEYRINGS = ("debian-archive-keyring.gpg", "debian-archive-keyring.pgp")
_SECURITY_SUFFIXES = ("-security", "/updates")
# What apt says of each index of packages; a CD is no mirror.
_INDEX = "$(REPO_URI)\t$(RELEASE)\t$(COMPONENT)"
_MIRROR_SCHEMES = ("http://", "https://", "file:", "mirror+")


@dataclass(frozen=True)
class Mirrors:
    """Addresses of the main archive and of the security archive."""

    main: str
    security: str

    def sources(self, suite: str, keyring: Path, *, updated: bool = True) -> str:
        """Return the apt sources (deb822) of one release, with its updates, or as it was last released."""
        updates = [(self.main, f"{suite} {suite}-updates"), (self.security, f"{suite}-security")]
        return "\n".join(
            f"Types: deb\nURIs: {address}\nSuites: {suites}\nComponents: main\nSigned-By: {keyring}\n"
            for address, suites in (updates if updated else [(self.main, suite)])
        )


class AptSource(NamedTuple):
    """One component of a suite in apt's sources, and its address."""

    address: str
    suite: str
    component: str


def find_keyring(folder: Path = Path("/usr/share/keyrings")) -> Path:
    """Return the file with Debian's archive keys.

    Raises:
        EnvironmentUnfit: it is not there.
    """
    if (found := next((folder / name for name in _KEYRINGS if (folder / name).is_file()), None)) is None:
        raise EnvironmentUnfit(f"{folder / _KEYRINGS[0]}: not found; install the package debian-archive-keyring")
    return found


def find_mirrors() -> Mirrors:
    """Return the mirrors: from the environment, else the machine's own if it is a Debian.

    Raises:
        EnvironmentUnfit: neither names one.
    """
    if chosen := os.environ.get(MIRROR_VARIABLE):
        root = chosen.rstrip("/")
        return Mirrors(f"{root}/debian", f"{root}/debian-security")
    machine = _os_release()
    sources = read_sources() if machine.get("ID") == "debian" else []
    return own_mirrors(sources, machine.get("VERSION_CODENAME", "stable"))


def own_mirrors(sources: list[AptSource], codename: str) -> Mirrors:
    """Return the mirrors that `sources` give for Debian `codename`; security is beside main if they do not name it.

    Raises:
        EnvironmentUnfit: they name no main archive.
    """
    names = {codename, "stable", "oldstable", "testing", "unstable", "sid"}
    if (main := _first_main(sources, names)) is None:
        raise EnvironmentUnfit(
            f"this machine's apt sources name no Debian mirror; name one in {MIRROR_VARIABLE}: "
            "an address with /debian and /debian-security below it"
        )
    security = _first_main(sources, {name + end for name in names for end in _SECURITY_SUFFIXES})
    return Mirrors(main, security or f"{main.rstrip('/').removesuffix('/debian')}/debian-security")


def _first_main(sources: list[AptSource], suites: set[str]) -> str | None:
    return next((source.address for source in sources if source.suite in suites and source.component == "main"), None)


def read_sources() -> list[AptSource]:
    """Return the enabled binary sources of this machine that are mirrors, as apt itself reads them; none if it cannot.

    Raises:
        EnvironmentUnfit: there is no apt.
    """
    ask = ("indextargets", "--no-release-info", "--format", _INDEX, "Created-By: Packages")
    said = subprocess.run([find_tool("apt-get", "apt"), *ask], capture_output=True, text=True, check=False).stdout
    rows = [line.split("\t") for line in said.splitlines() if line.startswith(_MIRROR_SCHEMES)]
    return [AptSource(address.rstrip("/"), suite, component) for address, suite, component in rows]


def _os_release() -> dict[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


GUEST_ARCHITECTURE = "arm64"
_REMEDY = f"check the network, or name another mirror in {MIRROR_VARIABLE}"
_DEBIAN_ARCHITECTURES = {"x86_64": "amd64", "aarch64": GUEST_ARCHITECTURE}


@dataclass(frozen=True)
class Package:
    """A package file: its name as downloaded, its size and its SHA-256."""

    file: str
    size_bytes: int
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

    def __init__(self, folder: Path, suite: str, architecture: str, runner: Runner, *, updated: bool = True) -> None:
        """Keep packages below `folder`; without `updated` those of the last point release, as an old machine has."""
        self._folder = folder / f"debian-{suite}-{architecture}"
        self._suite, self._architecture, self._runner, self._updated = suite, architecture, runner, updated

    @property
    def archives(self) -> Path:
        """Where the package files are."""
        return self._folder / "archives"

    def fetch(
        self,
        install: Sequence[str],
        without: Sequence[str],
        advance: Callable[[float], None] = lambda _: None,
        *,
        refresh: bool = False,
    ) -> list[Package]:
        """Return the packages `install` and all they depend on, downloaded and checked.

        An earlier answer whose files are all there is used again without any network, unless `refresh` is set.

        Args:
            install: package names.
            without: names that apt takes for installed.
            advance: is told how much is downloaded, 0 to 1.
            refresh: ask the mirror for newer versions.

        Raises:
            EnvironmentUnfit: a tool or Debian's keyring is missing.
            ImageError: the mirror cannot be reached, has no such package, or a file is damaged.
        """
        key = hashlib.sha256(repr((sorted(install), sorted(without))).encode()).hexdigest()[:12]
        known = self._folder / f"resolved-{key}.json"
        packages = None if refresh else self._recall(known)
        if packages is None:
            packages = self._download(install, without, advance)
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

    def _download(
        self, install: Sequence[str], without: Sequence[str], advance: Callable[[float], None]
    ) -> list[Package]:
        self._prepare(without)
        self._apt("update")
        packages = self._resolve(install)
        total_bytes = sum(package.size_bytes for package in packages)
        for path in self._damaged(packages):
            path.unlink(missing_ok=True)
        self._apt(
            *("install", "--yes", "--download-only", *install),
            on_poll=lambda: advance(min(1.0, self._kept_bytes() / total_bytes)),
        )
        if damaged := self._damaged(packages):
            raise ImageError(f"{damaged[0]}: damaged after download; {_REMEDY}")
        return packages

    def _resolve(self, install: Sequence[str]) -> list[Package]:
        # apt does not list what it already has, so it is shown an empty folder.
        option = f"Dir::Cache::archives={self._folder / 'empty'}"
        lines = self._apt("-o", option, "install", "--yes", "--print-uris", *install).splitlines()
        fields = [line.split() for line in lines if line.startswith("'")]
        return [Package(name, int(size), digest.removeprefix("SHA256:")) for _, name, size, digest in fields]

    def _apt(self, *arguments: str, on_poll: Callable[[], None] = lambda: None) -> str:
        return self._runner.run(
            [find_tool("apt-get", "apt"), *arguments],
            f"fetch Debian packages from {find_mirrors().main}",
            environment={"APT_CONFIG": str(self._folder / "apt.conf")},
            remedy=_REMEDY,
            on_poll=on_poll,
        )

    def _kept_bytes(self) -> int:
        folders = (self.archives, self.archives / "partial")
        try:
            return sum(path.stat().st_size for folder in folders for path in folder.iterdir())
        except OSError:
            # apt moves files while they are counted, and may keep the second folder to itself.
            return 0

    def _prepare(self, without: Sequence[str]) -> None:
        for part in ("lists/partial", "archives/partial", "empty/partial"):
            (self._folder / part).mkdir(parents=True, exist_ok=True)
        sources = find_mirrors().sources(self._suite, find_keyring(), updated=self._updated)
        (self._folder / "debian.sources").write_text(sources, encoding="utf-8")
        (self._folder / "status").write_text(_status(without), encoding="utf-8")
        kept = self._runner.run([find_tool("apt-config", "apt"), "dump", "Acquire"], "read apt's settings")
        (self._folder / "apt.conf").write_text(self._settings(kept), encoding="utf-8")

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
        # Where apt's unprivileged download user does not get to.
        if os.geteuid() == 0 and not all(each.stat().st_mode & 1 for each in (self._folder, *self._folder.parents)):
            own["APT::Sandbox::User"] = "root"
        return "\n".join([*kept, *(f'{name} "{value}";' for name, value in own.items()), ""])


def _status(without: Sequence[str]) -> str:
    """Return a dpkg status in which one installed package provides all of `without`, in any version."""
    provides = ", ".join(f"{name} (= 99:1)" for name in without)
    return (
        "Package: csd-emu-without\nStatus: install ok installed\nMaintainer: csd-emu\nArchitecture: all\nVersion: 1\n"
        f"Multi-Arch: foreign\nProvides: {provides}\nDescription: what the image does without\n\n"
    )
