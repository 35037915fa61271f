"""What is registered, as Markdown: one row for each engine and policy that a file can name."""

from __future__ import annotations

from csd_emu.config.engine_names import ENGINE
from csd_emu.util.registry import Registry
from host.config.plugins.kinds import SPLIT_POLICY, STRATEGY, TRANSFER_TUNER, TUNER

# Title, key of the file, registry.
_KINDS = (
    ("Engines", "`engine` of the array file: what drives run on", ENGINE),
    ("Strategies", "`strategy` of the job file: how the host makes new weights of the drives'", STRATEGY),
    ("Batch tuners", "`tuner` of the job file: how many records each device gets in a step", TUNER),
    ("Transfer tuners", "`communication` of the job file: how tensors are sent", TRANSFER_TUNER),
    ("Split policies", "`placement` of the job file: which layers the host has", SPLIT_POLICY),
)


def render_registered() -> str:
    """Return one table for each registry, its built-in classes in alphabetical order."""
    return "\n".join(_section(*each) for each in _KINDS)


def _section(title: str, key: str, registry: Registry) -> str:
    lines = [f"## {title}", "", f"{key}. Entry points: `{registry.group}`.", ""]
    lines += ["| name | is | class |", "|---|---|---|"]
    lines += [
        f"| `{each.name}` | {each.summary} | `{each.module}.{each.class_name}` |" for each in registry.entries.values()
    ]
    return "\n".join([*lines, ""])
