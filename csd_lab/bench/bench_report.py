"""Report of a bench, as ``--json`` prints it."""

from __future__ import annotations

from typing import Any

import msgspec

from host.cli.shipped_examples import NamedText


class BenchReport(msgspec.Struct, frozen=True):
    """`csd-emu bench NAME`: figures, the raw samples behind them, and the machine that they were measured on."""

    bench: str
    engine: str
    clock: str
    seed: int
    figures: dict[str, float]
    samples: dict[str, Any]
    machine: dict[str, Any]


class BenchList(msgspec.Struct, frozen=True):
    """`csd-emu bench` without a name."""

    benches: list[NamedText]
