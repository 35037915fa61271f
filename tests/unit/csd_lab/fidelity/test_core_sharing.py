import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_lab.fidelity.core_sharing import seconds_on_cores

SECONDS, SHARE = st.floats(1e-6, 1e3), st.floats(0, 1)
BYTES, BANDWIDTH = st.floats(0, 1e10), st.floats(1e8, 1e11)


@given(SECONDS, BYTES, st.floats(1, 64), st.floats(1, 4), SHARE, BANDWIDTH)
def test_more_cores_or_more_bandwidth_never_slow_it_down(
    seconds: float, moved: float, cores: float, more: float, share: float, bandwidth: float
) -> None:
    now = seconds_on_cores(seconds, moved, cores, share, bandwidth)
    assert seconds_on_cores(seconds, moved, cores * more, share, bandwidth) <= now * (1 + 1e-12)
    assert seconds_on_cores(seconds, moved, cores, share, bandwidth * more) <= now * (1 + 1e-12)
    assert seconds / cores * (1 - 1e-12) <= now <= seconds * (1 + 1e-12)


@given(SECONDS, BYTES, SHARE, BANDWIDTH)
def test_one_core_takes_its_own_time(seconds: float, moved: float, share: float, bandwidth: float) -> None:
    assert seconds_on_cores(seconds, moved, 1, share, bandwidth) == pytest.approx(seconds)


def test_hand_counted_cases() -> None:
    assert seconds_on_cores(8.0, 0, 4, 0.0, 1e9) == pytest.approx(2.0)
    assert seconds_on_cores(8.0, 0, 4, 0.5, 1e9) == pytest.approx(5.0)  # 4 alone, 4 on four
    assert seconds_on_cores(8.0, 3e9, 4, 0.0, 1e9) == pytest.approx(3.0)  # DRAM's
    assert seconds_on_cores(8.0, 9e9, 4, 0.0, 1e9) == pytest.approx(8.0)  # as long as alone
