"""Candidates of the shell's completion: names that are cheap to find. Nothing here raises or imports torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from csd_emu.util.paths import Paths


def complete_array(incomplete: str) -> list[str]:
    """Return names of arrays that are up, or have left something."""
    with contextlib.suppress(OSError):
        return list_beginning(incomplete, (path.name for path in Paths.default().arrays.iterdir() if path.is_dir()))
    return []


def complete_profile(incomplete: str) -> list[str]:
    """Return names of profiles, built in and the user's."""
    from csd_emu.profiles import PROFILES

    return list_beginning(incomplete, [*PROFILES, *(path.stem for path in Paths.default().profiles.glob("*.yaml"))])


def complete_fault(incomplete: str) -> list[str]:
    """Return the faults that can be injected."""
    from csd_emu.engines.engine_protocol import Fault

    return list_beginning(incomplete, Fault)


def complete_example(incomplete: str) -> list[str]:
    """Return names of examples."""
    from host.cli.shipped_examples import list_examples

    with contextlib.suppress(OSError):
        return list_beginning(incomplete, list_examples())
    return []


def complete_schema(incomplete: str) -> list[str]:
    """Return names of schemas."""
    from host.cli.schemas import list_schemas

    return list_beginning(incomplete, list_schemas())


def list_beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    """Return those of the names that begin with what is typed already, in order."""
    return sorted(name for name in names if name.startswith(incomplete))
