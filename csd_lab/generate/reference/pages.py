"""All generated reference pages."""

from __future__ import annotations

from pathlib import Path

from csd_emu.config.array_file import ArrayConfig
from csd_lab.generate.reference.commands import render_commands
from csd_lab.generate.reference.file_keys import render_file
from csd_lab.generate.reference.registered import render_registered
from host.config.job_file import JobConfig

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
