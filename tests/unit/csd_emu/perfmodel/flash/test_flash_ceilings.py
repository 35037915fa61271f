"""Geometry that cannot be, and the most that a geometry serves."""

import re
from typing import Any

import pytest

from csd_emu.perfmodel.flash.flash_ceilings import flash_ceiling
from csd_emu.profiles.flash_geometry import FlashParameters
from firmware_agent.common.errors import ConfigurationError

FLASH = FlashParameters()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"channels": 0}, "channels is 0; it must be a whole number from 1"),
        ({"read_ns": 0.5}, "read_ns is 0.5"),
        ({"command_ns": -1}, "command_ns is -1; it must be a whole number from 0"),
        ({"page_bytes": True}, "page_bytes is True"),
        ({"over_provisioning": -0.1}, "over_provisioning is -0.1"),
        ({"over_provisioning": float("nan")}, "over_provisioning is nan"),
        ({"over_provisioning": 0.005}, "two or more to garbage collection"),
        ({"blocks_per_plane": 2, "over_provisioning": 0.9}, "2 blocks_per_plane"),
        ({"over_provisioning": 1e6}, "some to data"),
        ({"channels": 40_000}, "320000 dies"),
        ({"blocks_per_plane": 1_000_000}, "fewer than 2^31 pages"),
    ],
)
def test_impossible_geometry_is_refused_with_its_figure(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^flash: .*{re.escape(says)}"):
        FlashParameters(**changes)


def test_the_namespace_is_what_over_provisioning_leaves() -> None:
    assert (FLASH.dies, FLASH.physical_pages) == (64, 64 * 256 * 256)
    assert FLASH.namespace_pages % FLASH.dies == 0
    assert FLASH.physical_pages / FLASH.namespace_pages == pytest.approx(1.07, abs=1e-4)
    assert FLASH.transfer_ns == 2926  # 4096 bytes at 1.4 GB/s, rounded up
    assert FlashParameters(planes=2).array_operations(129) == 65


@pytest.mark.parametrize(
    ("changes", "load", "limit", "iops"),
    [
        ({}, {}, "link", 3_938_000_000 / 4096),
        ({"link_bytes_per_second": 2**50}, {}, "dies", 64 / 50e-6),
        ({"link_bytes_per_second": 2**50, "planes": 4}, {"pages": 256}, "channels", 8 / 2926e-9 / 256),
        ({}, {"read_share": 0.0}, "dies", 64 / 500e-6),
        ({}, {"read_share": 0.0, "write_amplification": 2.0}, "dies", 64 / (1050e-6 + 2 * 3.5e-3 / 256)),
        ({}, {"read_share": 0.75}, "dies", 64 / (0.75 * 50e-6 + 0.25 * 500e-6)),
    ],
)
def test_the_ceiling_is_that_of_the_busiest_station(
    changes: dict[str, Any], load: dict[str, Any], limit: str, iops: float
) -> None:
    ceiling = flash_ceiling(FlashParameters(**changes), **load)
    assert (ceiling.limit, ceiling.iops) == (limit, pytest.approx(iops))
    assert ceiling.bytes_per_second == pytest.approx(iops * 4096 * load.get("pages", 1))
