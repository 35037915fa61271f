"""Imports of the user's files that travel, and the array's packages, against what drives have."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Mapping
from importlib import metadata

from csd_emu.config.array_file import NATIVE, QEMU, ArrayConfig
from csd_emu.image.extra_packages import image_distributions
from csd_emu.image.wheels import plain_name
from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.user_code.source_files import needed_imports

_HOST = ("csd_emu", "csd_lab", "host")
_EVERYWHERE = sys.stdlib_module_names | {"firmware_agent"}


def check_imports(config: ArrayConfig, sources: Mapping[str, str | None]) -> None:
    """Return if drives have the array's packages, and virtual machines what is named and what the user's files import.

    Args:
        config: the array; real drives, and processes on this machine, have what is installed there.
        sources: name, as the job has it -> text of its file; None for what is built in, or of an installed package.

    Raises:
        ConfigurationError: they lack a package that this machine has, or no image can have the array's packages.
        EnvironmentUnfit: it cannot be found out which these are.
    """
    packages = config.image.packages
    for package in packages if NATIVE in config.engines else ():
        _check_here(package)
    if QEMU not in config.engines and not config.sampled:
        return
    locked = image_distributions(packages, Paths.default().cache / "downloads")
    owners = metadata.packages_distributions()
    for name, source in sources.items():
        top, named, _ = name.partition(":")
        itself = [(top.partition(".")[0], "")] if source is None and named else []
        for module, place in itself or needed_imports(source or ""):
            found = owners.get(module, [module])
            if locked.isdisjoint(map(plain_name, found)) and module not in _EVERYWHERE and _is_here(module):
                remedy = (
                    "keep what drives run in another file than what is the host's"
                    if module in _HOST
                    else f"add image: {{packages: [{found[0]}]}} to the array file, or put what you need of it into a "
                    "file beside yours"
                    + "; if no drive comes there, into another file, or try: ... except ImportError"
                    * bool(place)
                )
                raise ConfigurationError(
                    f"{name}: {f'{place} imports' if place else 'is of'} {module}, which drives of this array do not "
                    f"have: there are torch, NumPy and the standard library; {remedy}"
                )


def _is_here(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def _check_here(package: str) -> None:
    """Refuse a package of the array's that the Python of native drives, this one, does not have."""
    name, exact = re.split(r"[^\w.-]", package)[0], re.search(r"==\s*([\w.+!-]+)$", package)
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        found = ""
    if not found or (exact is not None and _release(exact[1]) != _release(found)):
        raise ConfigurationError(
            f"image.packages: {package}: native drives have the packages of this Python, and there is "
            f"{f'{name} {found}' if found else f'no {name}'}; pip install '{package}'"
        )


def _release(version: str) -> str:
    """Return a version without zeros at its end and without a build's name: 2.0 is 2, and 2.13.0+cpu is 2.13."""
    return re.sub(r"(\.0)*(\+.*)?$", "", version)
