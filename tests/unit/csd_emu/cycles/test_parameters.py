from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.cycles.parameters import CoreParameters
from firmware_agent.common.errors import ConfigurationError


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"l1_data_kibibytes": 48}, "48 is no core's; 4 to 64 can be modelled, powers of two alone"),
        ({"l1_data_kibibytes": 64, "l2_kibibytes": 64, "clock_megahertz": 50}, "clock_megahertz: 50 is no core's"),
        ({"l1_data_kibibytes": 64, "l2_kibibytes": 32}, "l2_kibibytes: 32 is no core's"),
        ({"line_fills": 0}, "line_fills: 0"),
        ({"dram_nanoseconds": -1}, "dram_nanoseconds: -1"),
    ],
)
def test_what_no_core_is_gets_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        CoreParameters(**changes)


@given(st.integers(1, 8), st.integers(0, 8))
def test_another_core_has_another_digest(fills: int, streams: int) -> None:
    core = CoreParameters(line_fills=fills, prefetch_streams=streams)
    usual = CoreParameters()
    assert (core.digest == usual.digest) == (core == usual)
    assert dict(pair.split("=") for pair in core.options().split(",")) == {
        name: str(value) for name, value in msgspec.structs.asdict(core).items()
    }
