"""The kinds of plug-in, and the names under which they are known."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib import metadata

from firmware_agent.errors import PluginError


@dataclass(frozen=True)
class PluginKind:
    """What can be plugged in.

    Attributes:
        word: the job file's key.
        group: of the entry points.
        built_in: names that are csd-emu's own.
        needed: methods that a class must have to be one.
        given: what the run gives a plug-in's class if its signature has it: name -> what it is.
    """

    word: str
    group: str
    built_in: tuple[str, ...]
    needed: tuple[str, ...]
    given: dict[str, str]


STRATEGY = PluginKind(
    "strategy",
    "csd_emu.strategies",
    ("fedavg", "fedprox", "fednova", "fedadam", "median", "trimmed_mean", "krum", "multi_krum"),
    ("aggregate", "state", "load_state"),
    {"parameters": "names of the weights that are trained", "momentum": "of SGD in the drives"},
)
TUNER = PluginKind(
    "tuner",
    "csd_emu.tuners",
    ("none", "stannis", "hypertune"),
    ("probes", "observe", "leave", "join", "possible_images_per_second", "state", "load_state"),
    {
        "tables": "the speed table of each device",
        "batches": "(devices,) STANNIS's, to begin with",
        "names": "of the devices",
        "total_steps": "of the run, if batches stay",
        "sync_seconds": "what the exchange adds to each step",
    },
)


def list_entry_points(kind: PluginKind) -> list[metadata.EntryPoint]:
    """Return the entry points of installed packages, one for each time that a name is declared."""
    found = {(each.name, each.value): each for each in metadata.entry_points(group=kind.group)}
    return list(found.values())


def check_name(kind: PluginKind, name: str) -> None:
    """Return if `name` is built in, an entry point, or of the form ``where:Class``.

    Raises:
        PluginError: it is not; the nearest known name is given.
    """
    where, colon, attribute = name.partition(":")
    if name in kind.built_in or (where and attribute):
        return
    if where and colon:
        raise PluginError(f"{kind.word} {name!r}: the class is missing; write {name}Class")
    known = [*kind.built_in, *(each.name for each in list_entry_points(kind))]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(known)}"
        raise PluginError(
            f"{kind.word} {name!r} is not known; {hint}; your own: my_{kind.word}.py:Class or package.module:Class"
        )


def check_not_shadowed(kind: PluginKind, name: str) -> None:
    """Return if no installed package declares an entry point with this built-in name.

    Raises:
        PluginError: one does: which of both is meant cannot be known.
    """
    for each in list_entry_points(kind):
        if each.name == name:
            raise PluginError(
                f"{kind.word} {name!r} is built in, and {_owner(each)} declares it too ({each.value}); a built-in name "
                f"cannot be replaced: rename or uninstall that one, or write {kind.word}: {each.value}"
            )


def find_entry_point(kind: PluginKind, name: str) -> str:
    """Return the ``module:Class`` that an entry point stands for.

    Raises:
        PluginError: it is none, or two packages declare it.
    """
    check_name(kind, name)
    values = {each.value: _owner(each) for each in list_entry_points(kind) if each.name == name}
    if len(values) > 1:
        told = " and ".join(f"{value} of {owner}" for value, owner in sorted(values.items()))
        raise PluginError(f"{kind.word} {name!r} is declared twice: {told}; uninstall one, or write its import path")
    return next(iter(values))


def _owner(entry: metadata.EntryPoint) -> str:
    return f"package {entry.dist.name}" if entry.dist is not None else "an installed package"
