"""Energy of a round by who draws it. Numbers in, numbers out."""

from __future__ import annotations

from csd_emu.perfmodel.power import CHASSIS
from csd_emu.util.node_names import HOST
from host.core.records import RoundRecord

# Who draws what, in the order in which it is stacked.
GROUPS = ("drives: idle", "drives: cpu", "drives: dram", "drives: flash", "drives: link", HOST, CHASSIS)


def group_energy(record: RoundRecord) -> dict[str, float]:
    """Return group -> joules of one round; see `GROUPS`. What is of no known group goes by its own component name."""
    joules = dict.fromkeys(GROUPS, 0.0)
    for node, parts in record.node_joules.items():
        for component, value in parts.items():
            group = _group(node, component)
            joules[group] = joules.get(group, 0.0) + value
    return joules


def _group(node: str, component: str) -> str:
    if CHASSIS in (node, component):
        return CHASSIS
    return HOST if node == HOST else f"drives: {component}"
