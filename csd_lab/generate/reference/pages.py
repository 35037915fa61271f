"""All generated reference pages, with what is registered under a name."""

from __future__ import annotations

from pathlib import Path

from csd_emu.config.array_file import ArrayConfig
from csd_emu.config.engine_names import ENGINE
from csd_emu.util.registry import Registry
from csd_lab.generate.reference.commands import render_commands
from csd_lab.generate.reference.file_keys import render_file
from host.config.job_file import JobConfig
from host.config.plugins.kinds import SPLIT_POLICY, STRATEGY, TRANSFER_TUNER, TUNER

FOLDER = Path(__file__).parents[3] / "docs" / "reference"
_HEAD = "<!-- Written by `python -m csd_lab.generate.reference` from the code; change it there. -->\n\n"
_CODES = """\
An error of yours or of the machine's is one message on standard error and exit code 2. Exit code 1 means that a run
missed its target or failed, 130 that it was interrupted; everything that was started has ended then. What `--json`
prints has a published schema: `csd-emu schema COMMAND`.

"""
_OWN = "[Extending](../extending.md) has how to add one.\n\n"
_MORE = "[Configuration](../configuration.md) explains the keys with examples.\n\n"


def pages() -> dict[str, str]:
    """Return file name -> content."""
    array = "# Keys of the array file\n\n" + _HEAD + _MORE + render_file(ArrayConfig)
    job = "# Keys of the job file\n\n" + _HEAD + _MORE + render_file(JobConfig)
    return {
        "array-file.md": array,
        "cli.md": "# Command line\n\n" + _HEAD + _CODES + render_commands(),
        "job-file.md": job,
        "registered.md": "# Engines and policies\n\n" + _HEAD + _OWN + render_registered(),
    }


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
