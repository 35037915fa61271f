"""Plug-ins of a user's, written to files, and an installed package that declares entry points."""

from pathlib import Path

STATEFUL = """
from __future__ import annotations
import dataclasses
import numpy as np
from host.policies.aggregation import Stateless, check_names, weighted_mean

@dataclasses.dataclass
class Memory:
    mean: dict | None = None

class Slow(Stateless):
    def __init__(self, parameters, keep: float = 0.5):
        self.keep, self.memory, self.parameters = keep, Memory(), parameters

    def aggregate(self, weights, parts):
        mean = weighted_mean([(part.samples, part.weights) for part in parts])
        last = self.memory.mean or mean
        self.memory.mean = {n: self.keep * last[n] + (1 - self.keep) * mean[n] for n in mean}
        return dict(self.memory.mean)

    def state(self):
        return self.memory.mean or {}

    def load_state(self, state):
        if state:
            assert self.parameters <= set(state)
        self.memory.mean = state or None
"""


def install_package(site: Path, name: str, module: str, entry_points: dict[str, str]) -> None:
    """Lay out an installed distribution below `site`: one module, its metadata, and entry points by group."""
    site.mkdir(exist_ok=True)
    (site / f"{name}.py").write_text(module, encoding="utf-8")
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    text = "\n".join(f"[{group}]\n{line}" for group, line in entry_points.items())
    (info / "entry_points.txt").write_text(text, encoding="utf-8")
