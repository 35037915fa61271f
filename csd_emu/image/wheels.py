"""The drive's Python packages: aarch64 wheels, fetched by the hashes of a lock file, unpacked without installing."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from csd_emu.image.runner import Runner
from csd_emu.util.file_hash import file_sha256
from firmware_agent.common.errors import EnvironmentUnfit, ImageError

_DOWNLOADS_AT_ONCE = 4
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_COPY_BYTES = 1 << 20
_PARTIAL = ".partial-"
# Whose wheels are used before any package index is asked.
LOCAL_WHEELS = Path("wheels")
_REMEDY = "check the network and pip's index, or put the wheel into a folder named wheels"


@dataclass(frozen=True)
class Requirement:
    """One locked package: ``name==version`` and the SHA-256 sums that its wheel may have."""

    pin: str
    sha256: tuple[str, ...]

    @property
    def name(self) -> str:
        """The package's name, as package indexes compare names."""
        return plain_name(self.pin.partition("==")[0])

    @property
    def text(self) -> str:
        """The line of a requirements file."""
        return " ".join([self.pin, *(f"--hash=sha256:{digest}" for digest in self.sha256)]) + "\n"


def plain_name(name: str) -> str:
    """Return the form of a package's name that is the same however it is written."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(path: Path) -> list[Requirement]:
    """Read a lock file in pip's format with hashes.

    Raises:
        ImageError: it cannot be read, or a package has no version or no hash.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ImageError(f"{path}: cannot be read ({error}); reinstall csd-emu") from error
    lines = (line.split("#")[0].strip() for line in text.replace("\\\n", " ").splitlines())
    requirements = [Requirement(line.split()[0], tuple(_HASH.findall(line))) for line in lines if line]
    for requirement in requirements:
        if "==" not in requirement.pin or not requirement.sha256:
            raise ImageError(f"{path}: {requirement.pin!r} needs an exact version and a sha256 hash; reinstall csd-emu")
    return requirements


@dataclass(frozen=True)
class LockedWheels:
    """Which wheels: those of a lock file, for one Python (``major.minor``) on certain platforms, best first."""

    lock_file: Path
    python: str
    platforms: tuple[str, ...]

    @property
    def options(self) -> list[str]:
        """What pip is told of the drive."""
        platforms = [word for tag in self.platforms for word in ("--platform", tag)]
        python = self.python.replace(".", "")
        return ["--only-binary=:all:", "--implementation", "cp", "--python-version", python, *platforms]


def check_pip() -> None:
    """Raise `EnvironmentUnfit` if this Python has no pip."""
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode:
        raise EnvironmentUnfit(f"{sys.executable}: has no pip to download the drive's packages; run ensurepip for it")


class WheelCache:
    """Wheels kept in a folder, one file per locked package."""

    def __init__(self, folder: Path, local: Sequence[Path], wanted: LockedWheels, runner: Runner) -> None:
        """Keep wheels in `folder`; take them from the folders `local` before any index is asked."""
        self._folder, self._local, self._wanted, self._runner = folder, local, wanted, runner

    def fetch(self, advance: Callable[[float], None] = lambda _: None) -> list[Path]:
        """Return the wheels of the lock file, downloaded and checked.

        Raises:
            EnvironmentUnfit: this Python has no pip.
            ImageError: a wheel cannot be found or its hash is wrong.
        """
        requirements = read_lock(self._wanted.lock_file)
        self._folder.mkdir(parents=True, exist_ok=True)
        for leftover in self._folder.glob(f"{_PARTIAL}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        found = self._known({digest for requirement in requirements for digest in requirement.sha256})
        missing = [requirement for requirement in requirements if not found.keys() & set(requirement.sha256)]
        if missing:
            check_pip()
        with ThreadPoolExecutor(_DOWNLOADS_AT_ONCE) as pool:
            for done, wheel in enumerate(pool.map(self._download, missing), 1):
                found[file_sha256(wheel)] = wheel
                advance(done / len(missing))
        return [found[next(digest for digest in requirement.sha256 if digest in found)] for requirement in requirements]

    def _known(self, wanted: set[str]) -> dict[str, Path]:
        wheels = [path for folder in (self._folder, *self._local) for path in sorted(folder.glob("*.whl"))]
        found: dict[str, Path] = {}
        for wheel in wheels:
            if (digest := file_sha256(wheel)) in wanted:
                found.setdefault(digest, wheel)
        return found

    def _download(self, requirement: Requirement) -> Path:
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=_PARTIAL) as name:
            partial = Path(name)
            lock = partial / "requirement.txt"
            lock.write_text(requirement.text, encoding="utf-8")
            self._runner.run(self._pip(lock, partial), f"download {requirement.pin} for aarch64", remedy=_REMEDY)
            wheel = next(partial.glob("*.whl"))
            return wheel.replace(self._folder / wheel.name)

    def _pip(self, lock: Path, target: Path) -> list[str | Path]:
        return [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
            *("--require-hashes", "--dest", target, "--requirement", lock),
            *self._wanted.options,
        ]


def unpack_wheel(wheel: Path, site: Path, leave_out: Sequence[str]) -> None:
    """Unpack the members of a wheel that match none of the patterns `leave_out` below `site`.

    Raises:
        ImageError: the wheel is damaged.
    """
    skip = re.compile("|".join(fnmatch.translate(pattern) for pattern in leave_out) or r"(?!)")
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                if not member.is_dir() and not skip.match(member.filename):
                    _extract(archive, member, site)
    except zipfile.BadZipFile as error:
        raise ImageError(f"{wheel}: damaged ({error}); remove the file and run it again") from error


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, site: Path) -> None:
    name = PurePosixPath(member.filename)
    target = site / name
    if name.is_absolute() or ".." in name.parts:
        raise ImageError(f"{archive.filename}: the member {member.filename!r} leaves its folder; do not use this file")
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(member) as source, target.open("wb") as copy:
        shutil.copyfileobj(source, copy, _COPY_BYTES)
    if member.external_attr >> 16 & 0o111:
        target.chmod(0o755)
