"""The systemd unit of real drives: what the agent, and a model in it, may not do there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from host.deploy.recipe import default_folder

UNIT = (default_folder() / "csd-agent.service").read_text(encoding="utf-8")
# systemd's own score, 0 (confined) to 10; it was 8.4 without all this.
MOST_EXPOSED = 4.0


def keys() -> dict[str, str]:
    return dict(line.split("=", 1) for line in UNIT.splitlines() if re.match(r"[A-Z]\w+=", line))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("ReadWritePaths", "@FOLDER@"),
        ("PrivateTmp", "yes"),
        ("PrivateDevices", "yes"),
        ("RestrictNamespaces", "yes"),
        ("ProtectControlGroups", "yes"),
        ("UMask", "0077"),
    ],
)
def test_it_is_confined(key: str, value: str) -> None:
    assert keys()[key] == value


def test_root_may_only_do_what_it_must_before_it_becomes_the_agents_user() -> None:
    wanted = {"SETUID", "SETGID", "SYS_ADMIN", "SYS_CHROOT", "DAC_OVERRIDE"}
    assert set(keys()["CapabilityBoundingSet"].split()) == {f"CAP_{name}" for name in wanted}


def test_it_speaks_ip_and_to_its_own_system_alone() -> None:
    assert set(keys()["RestrictAddressFamilies"].split()) == {"AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"}


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
