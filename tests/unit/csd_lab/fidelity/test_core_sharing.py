import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_lab.fidelity.core_sharing import speed_up

SHARE, CORES = st.floats(0, 1), st.integers(1, 32)


@given(SHARE, CORES, SHARE)
def test_it_is_between_one_and_what_amdahl_and_the_bus_allow(share: float, cores: int, serial: float) -> None:
    gain = speed_up(share, cores, serial)
    assert 1 - 1e-9 <= gain <= 1 / (serial + (1 - serial) / cores) + 1e-9
    if serial == 0 and share > 0:
        assert gain <= 1 / share + 1e-9


@given(SHARE, SHARE, CORES, SHARE)
def test_more_cores_help_and_more_of_the_bus_or_serial_work_does_not(
    share: float, more: float, cores: int, serial: float
) -> None:
    assert speed_up(share, cores + 1, serial) >= speed_up(share, cores, serial) - 1e-9
    assert speed_up(max(share, more), cores, serial) <= speed_up(min(share, more), cores, serial) + 1e-9
    assert speed_up(serial, cores, max(share, more)) <= speed_up(serial, cores, min(share, more)) + 1e-9


def test_hand_counted_cases() -> None:
    assert speed_up(0.0, 4, 0.0) == pytest.approx(4)
    assert speed_up(1.0, 4, 0.0) == speed_up(7.0, 4, 0.0) == pytest.approx(1)
    assert speed_up(0.0, 4, 0.5) == pytest.approx(1.6)
    assert speed_up(0.5, 2, 0.0) == pytest.approx(2 / 1.25)  # the second waits for half of the first's half
    assert speed_up(0.4, 1, 0.3) == pytest.approx(1)
