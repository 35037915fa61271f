import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.profiles.core_sharing import SERIAL_SHARES, core_model_constants, phase_gain, speed_up

PHASE, ASKED = st.sampled_from([*SERIAL_SHARES, "encode"]), st.floats(0, 100)
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


@given(PHASE, ASKED, CORES)
def test_no_phase_is_faster_than_the_bus_or_than_its_serial_share_allows(phase: str, asked: float, cores: int) -> None:
    gain, serial = phase_gain(phase, asked, cores), SERIAL_SHARES.get(phase, 1.0)
    assert 0 < gain <= 1 / (serial + (1 - serial) / cores) + 1e-9
    assert gain * asked <= 1 + 1e-9
    if asked >= 1:
        assert gain * asked == pytest.approx(1)
    else:
        assert gain >= 1 - 1e-9


@given(PHASE, ASKED, ASKED, CORES)
def test_a_phase_gains_by_cores_and_loses_by_what_it_asks(phase: str, asked: float, more: float, cores: int) -> None:
    assert phase_gain(phase, asked, cores + 1) >= phase_gain(phase, asked, cores) * (1 - 1e-9)
    assert phase_gain(phase, max(asked, more), cores) <= phase_gain(phase, min(asked, more), cores) * (1 + 1e-9)
    assert phase_gain(phase, asked, 1) == pytest.approx(1 / max(1, asked))


def test_a_phase_that_no_thread_shares_gains_nothing() -> None:
    assert phase_gain("encode", 0.5, 4) == pytest.approx(1)


def test_cycles_alone_rest_on_constants_of_the_shared_dram() -> None:
    assert core_model_constants("instructions") == {}
    assert core_model_constants("cycles")["core_sharing"].keys() == {"version", *SERIAL_SHARES}
    assert all(0 <= share <= 1 for share in SERIAL_SHARES.values())
