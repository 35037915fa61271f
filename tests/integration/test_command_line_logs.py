"""The log of the command line, in a process of its own."""

import json
import subprocess
import sys

import pytest

from host.core import console as logs


@pytest.mark.parametrize(
    ("options", "variable"), [(["--log-format", "json"], ""), ([], "json")], ids=["option", "variable"]
)
def test_the_command_line_writes_nothing_else_to_standard_error(options: list[str], variable: str) -> None:
    command = [sys.executable, "-c", "from host.cli.entry import main; main()", *options, "validate", "missing.yaml"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", logs.LOG_VARIABLE: variable}, check=False
    )
    assert done.returncode == 2
    (line,) = map(json.loads, done.stderr.splitlines())
    assert line["level"] == "error"
    assert "missing.yaml" in line["message"]
