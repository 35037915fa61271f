"""The drive's systemd unit, read by systemd itself."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from host.deploy.bundle.bundle_recipe import default_folder

UNIT = (default_folder() / "csd-agent.service").read_text(encoding="utf-8")
# systemd's own score, 0 (confined) to 10; it was 8.4 without all this.
MOST_EXPOSED = 4.0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_it_and_finds_it_confined(tmp_path: Path) -> None:
    unit = tmp_path / "csd-agent.service"
    unit.write_text(UNIT.replace("@FOLDER@/bin/csd-agent", shutil.which("true") or "").replace("@FOLDER@", "/opt"))
    checked = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    # Those two are younger than some systemd, which passes over them.
    unknown = set(re.findall(r"Unknown key (?:name )?'(\w+)'", checked.stderr))
    assert unknown <= {"RestartSteps", "RestartMaxDelaySec"}, checked.stderr
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", unit]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"exposure level for \S+: ([0-9.]+)", told.stdout)
    if found is None:
        pytest.skip(f"systemd-analyze says nothing here: {told.stderr.strip()}")
    assert float(found[1]) <= MOST_EXPOSED
