"""Python packages that an array's image has beside those of its recipe: found by pip, and kept in a lock file."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from csd_emu.image.image_recipe import image_folder, load_recipe
from csd_emu.image.wheels import LOCAL_WHEELS, LockedWheels, Requirement, check_pip, read_lock
from firmware_agent.common.atomic_files import replace_file
from firmware_agent.common.errors import ConfigurationError, CsdError, ImageError, shorten

# pip judges which dependencies a package has by the machine that it runs on: here it is told of the drive's.
_PIP = """
import sys
from pip._vendor.packaging import markers

here = markers.default_environment
there = {"platform_machine": "aarch64", "python_version": sys.argv[1], "python_full_version": f"{sys.argv[1]}.0"}
markers.default_environment = lambda: {**here(), **there}
del sys.argv[1]
from pip._internal.cli.main import main

sys.exit(main())
"""
# What is in pip's words -> what kind of error it is, and what to do about it; the first that fits.
_REFUSALS: dict[str, tuple[type[CsdError], str]] = {
    "onnection|timed out": (ImageError, "check the network and pip's index; what was found once is kept"),
    "ResolutionImpossible": (
        ConfigurationError,
        "what the image has stays as it is ({}): ask for versions that go with that, and with each other",
    ),
    "": (
        ConfigurationError,
        "correct the name or the version, or choose a package that has a wheel of pure Python or manylinux",
    ),
}


def lock_packages(wheels: LockedWheels, packages: Sequence[str], downloads: Path) -> LockedWheels:
    """Return `wheels`, and `packages` with all they need: as pip found them when these were first asked for.

    Args:
        wheels: of the recipe; none of them is replaced.
        packages: requirements in pip's form.
        downloads: folder of the lock file.

    Raises:
        ConfigurationError: there is no such package, no wheel of it for the drive, or it does not go with `wheels`.
        EnvironmentUnfit: this Python has no pip.
    """
    if not packages:
        return wheels
    own = wheels.lock_file.read_text(encoding="utf-8")
    key = hashlib.sha256(repr((own, wheels.python, wheels.platforms, sorted(packages))).encode()).hexdigest()[:12]
    lock = downloads / f"packages-{key}.lock"
    if not lock.is_file():
        found = sorted(_resolve(wheels, packages), key=lambda requirement: requirement.pin)
        downloads.mkdir(parents=True, exist_ok=True)
        replace_file(lock, (own + "".join(requirement.text for requirement in found)).encode())
    return replace(wheels, lock_file=lock)


def image_distributions(packages: Sequence[str], downloads: Path) -> frozenset[str]:
    """Return the names of what an image with `packages` has; raises like `lock_packages`."""
    wheels = lock_packages(load_recipe(image_folder()).wheels, packages, downloads)
    return frozenset(requirement.name for requirement in read_lock(wheels.lock_file))


def _resolve(wheels: LockedWheels, packages: Sequence[str]) -> Iterator[Requirement]:
    """Yield what pip would install beside `wheels`; nothing is downloaded but what pip must look into."""
    there = {requirement.name: requirement.pin for requirement in read_lock(wheels.lock_file)}
    check_pip()
    with tempfile.TemporaryDirectory() as name:
        report, constraints = Path(name, "report.json"), Path(name, "constraints.txt")
        constraints.write_text("\n".join(there.values()), encoding="utf-8")
        command = [
            *(sys.executable, "-c", _PIP, wheels.python, "install", "--dry-run", "--quiet", "--ignore-installed"),
            *(
                "--disable-pip-version-check",
                "--target",
                name,
                "--constraint",
                str(constraints),
                "--report",
                str(report),
            ),
            *("--find-links", str(LOCAL_WHEELS), *wheels.options, *packages),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise _refusal(wheels, packages, done.stderr, there.values())
        items: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["install"]
    for item in items:
        digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
        found = Requirement("{name}=={version}".format_map(item["metadata"]), (digest,))
        if found.name not in there:
            yield found


def _refusal(wheels: LockedWheels, packages: Sequence[str], said: str, there: Iterable[str]) -> CsdError:
    kind, remedy = next(refusal for pattern, refusal in _REFUSALS.items() if re.search(pattern, said))
    words = next((line[7:] for line in said.splitlines() if line.startswith("ERROR: ")), shorten(said.strip(), 200))
    return kind(
        f"image.packages: {', '.join(packages)}: pip finds no wheels of all that for aarch64 and Python "
        f"{wheels.python} ({words}); {remedy.format(', '.join(there))}"
    )
