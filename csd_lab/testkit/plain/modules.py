"""Kernel modules in the order in which they can be loaded one by one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from firmware_agent.common.errors import ImageError


def load_order(folder: Path, wanted: Sequence[str]) -> list[Path]:
    """Return the files of the modules `wanted` and of all they rest on, each after what it rests on.

    Args:
        folder: ``lib/modules/RELEASE``, with the ``modules.dep`` and ``modules.builtin`` of depmod.
        wanted: names; what is built into the kernel needs no file.

    Raises:
        ImageError: the kernel has no such module.
    """
    rests_on = _dependencies((folder / "modules.dep").read_text(encoding="utf-8"))
    paths = {_name(path): path for path in rests_on}
    builtin = {_name(line) for line in (folder / "modules.builtin").read_text(encoding="utf-8").splitlines()}
    order: list[str] = []
    for name in map(_name, wanted):
        if name in paths:
            _add(paths[name], rests_on, order)
        elif name not in builtin:
            raise ImageError(f"kernel {folder.name}: has no module {name}; correct the recipe")
    return [folder / path for path in order]


def _add(path: str, rests_on: dict[str, list[str]], order: list[str]) -> None:
    for other in rests_on[path]:
        _add(other, rests_on, order)
    if path not in order:
        order.append(path)


def _dependencies(text: str) -> dict[str, list[str]]:
    lines = (line.partition(":") for line in text.splitlines())
    return {path: others.split() for path, _, others in lines}


def _name(path: str) -> str:
    """Return a module's name as the kernel knows it: files use hyphens and underlines as they please."""
    return path.rpartition("/")[2].removesuffix(".ko").replace("-", "_")
