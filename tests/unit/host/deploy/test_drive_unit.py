"""The systemd unit of real drives: what the agent, and a model in it, may not do there."""

from __future__ import annotations

import re

import pytest

from host.deploy.bundle.bundle_recipe import default_folder

UNIT = (default_folder() / "csd-agent.service").read_text(encoding="utf-8")


def keys() -> dict[str, str]:
    return dict(line.split("=", 1) for line in UNIT.splitlines() if re.match(r"[A-Z]\w+=", line))


def test_it_is_confined(subtests: pytest.Subtests) -> None:
    for key, value in [
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("ReadWritePaths", "@FOLDER@"),
        ("PrivateTmp", "yes"),
        ("PrivateDevices", "yes"),
        ("RestrictNamespaces", "yes"),
        ("ProtectControlGroups", "yes"),
        ("UMask", "0077"),
    ]:
        with subtests.test(key=key, value=value):
            assert keys()[key] == value


def test_root_may_only_do_what_it_must_before_it_becomes_the_agents_user() -> None:
    wanted = {"SETUID", "SETGID", "SYS_ADMIN", "SYS_CHROOT", "DAC_OVERRIDE"}
    assert set(keys()["CapabilityBoundingSet"].split()) == {f"CAP_{name}" for name in wanted}


def test_it_speaks_ip_and_to_its_own_system_alone() -> None:
    assert set(keys()["RestrictAddressFamilies"].split()) == {"AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"}


def test_what_asks_the_drive_for_its_health_may_do_nothing_else() -> None:
    unit = (default_folder() / "csd-agent-health.service").read_text(encoding="utf-8")
    own = dict(line.split("=", 1) for line in unit.splitlines() if re.match(r"[A-Z]\w+=", line))
    wanted = {"CapabilityBoundingSet": "CAP_SYS_ADMIN", "PrivateNetwork": "yes", "DevicePolicy": "closed"}
    wanted |= {"ReadWritePaths": "@FOLDER@/health", "ProtectSystem": "strict", "NoNewPrivileges": "yes"}
    assert {key: own[key] for key in wanted} == wanted
    assert own["PartOf"] == "csd-agent.service"
    assert "User" not in own
