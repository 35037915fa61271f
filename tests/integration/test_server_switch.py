"""Servers in network namespaces: their links have the rate that was asked for, and nothing is left of them."""

import subprocess

import pytest

from csd_emu.engines.shaping.namespace_shaper import can_make_namespaces
from csd_lab.bench.scaleout.server_switch import ServerSwitch, server_switch

pytestmark = pytest.mark.skipif(not can_make_namespaces(), reason="needs root and iproute2")


def test_servers_are_shaped_and_reach_each_other() -> None:
    with server_switch(2) as switch:
        switch.shape(5e6)
        switch.shape(10e6)
        assert {switch.name, f"{switch.name}-0", f"{switch.name}-1"} <= _namespaces()
        for place in ([*switch.places[1], "tc", "qdisc"], ["ip", "netns", "exec", switch.name, "tc", "qdisc"]):
            shown = subprocess.run(place, capture_output=True, text=True, check=True).stdout
            assert "tbf" in shown
            assert "80Mbit" in shown
    assert not _left_of(switch)


def test_nothing_is_left_of_servers_whose_work_failed() -> None:
    kept: list[ServerSwitch] = []

    def fail() -> None:
        with server_switch(2) as switch:
            kept.append(switch)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not _left_of(kept[0])


def _left_of(switch: ServerSwitch) -> set[str]:
    return {name for name in _namespaces() if name.startswith(switch.name)}


def _namespaces() -> set[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines() if line}
