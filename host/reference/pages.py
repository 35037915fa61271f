"""All generated reference pages."""

from __future__ import annotations

from pathlib import Path

from csd_emu.array import ArrayConfig
from host.job import JobConfig
from host.reference.commands import render_commands
from host.reference.files import render_file

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
_HEAD = "<!-- Written by `python -m host.reference` from the code; change it there. -->\n\n"
_CODES = """\
An error of yours or of the machine's is one message on standard error and exit code 2. Exit code 1 means that a run
missed its target or failed, 130 that it was interrupted; everything that was started has ended then. What `--json`
prints has a published schema: `csd-emu schema COMMAND`.

"""
_MORE = "[Configuration](../configuration.md) explains the keys with examples.\n\n"


def pages() -> dict[str, str]:
    """Return file name -> content."""
    array = "# Keys of the array file\n\n" + _HEAD + _MORE + render_file(ArrayConfig)
    job = "# Keys of the job file\n\n" + _HEAD + _MORE + render_file(JobConfig)
    return {
        "array-file.md": array,
        "cli.md": "# Command line\n\n" + _HEAD + _CODES + render_commands(),
        "job-file.md": job,
    }
