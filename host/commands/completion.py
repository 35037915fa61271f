"""What the shell's completion offers: names that are cheap to find. Nothing here raises or imports torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from csd_emu.paths import Paths


def complete_array(incomplete: str) -> list[str]:
    """Return names of arrays that are up, or have left something."""
    with contextlib.suppress(OSError):
        return _beginning(incomplete, (path.name for path in Paths.default().arrays.iterdir() if path.is_dir()))
    return []


def complete_bench(incomplete: str) -> list[str]:
    """Return names of benches."""
    from host.bench import BENCHES

    return _beginning(incomplete, BENCHES)


def complete_profile(incomplete: str) -> list[str]:
    """Return names of profiles, built in and the user's."""
    from csd_emu.profiles import PROFILES

    return _beginning(incomplete, [*PROFILES, *(path.stem for path in Paths.default().profiles.glob("*.yaml"))])


def complete_fault(incomplete: str) -> list[str]:
    """Return the faults that can be injected."""
    from host.control import Harm

    return _beginning(incomplete, Harm)


def complete_example(incomplete: str) -> list[str]:
    """Return names of examples."""
    from host.example_files import list_examples

    with contextlib.suppress(OSError):
        return _beginning(incomplete, list_examples())
    return []


def complete_schema(incomplete: str) -> list[str]:
    """Return names of schemas."""
    from host.schemas import list_schemas

    return _beginning(incomplete, list_schemas())


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
