"""Default of slice and credit, and what a search chooses from."""

import math

from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.overlap.simulated_link import SharedLink
from firmware_agent.common.send_queue import TransferSettings
from host.policies.transfer.setting_grid import (
    LEAST_SLICE_BYTES,
    MOST_CREDIT_BYTES,
    MOST_SLICE_BYTES,
    ROUND_BYTES,
    candidates,
    default_setting,
    scaled,
)

LINKS = st.builds(SharedLink, st.floats(1e5, 1e10), st.floats(0, 0.1), st.floats(0, 0.01))


def sizes(sending: TransferSettings) -> tuple[int, int]:
    assert sending.slice_bytes is not None
    assert sending.credit_bytes is not None
    return sending.slice_bytes, sending.credit_bytes


@given(st.integers(0, 10**9), LINKS)
def test_a_default_fits_the_model_and_the_bounds_and_its_credit_holds_a_slice(
    model_bytes: int, link: SharedLink
) -> None:
    slice_bytes, credit_bytes = sizes(default_setting(model_bytes, link))
    most = max(1, model_bytes)
    assert min(LEAST_SLICE_BYTES, most) <= slice_bytes <= min(MOST_SLICE_BYTES, most)
    assert slice_bytes <= credit_bytes <= min(MOST_CREDIT_BYTES, most)


@given(st.integers(10**6, 10**8), st.floats(1e6, 1e9), st.floats(1e-5, 5e-3))
def test_a_default_slice_costs_least_of_overhead_and_waiting(
    model_bytes: int, rate: float, slice_seconds: float
) -> None:
    def seconds(size: float) -> float:
        return model_bytes / size * slice_seconds + size / rate

    size, _ = sizes(default_setting(model_bytes, SharedLink(rate, 1e-3, slice_seconds)))
    for other in (size / 2, 2 * size):
        if LEAST_SLICE_BYTES < size < min(MOST_SLICE_BYTES, model_bytes):
            assert seconds(size) <= 1.001 * seconds(other)


def test_the_default_of_two_megabytes_over_ten_megabytes_a_second() -> None:
    """sqrt(2e6 x 0.4 ms x 10 MB/s) = 89.4 kB, and 2 (1 + 0.4) ms x 10 MB/s = 28 kB more of credit."""
    link = SharedLink(10e6, 1e-3, 4e-4)
    assert default_setting(2_000_000, link) == TransferSettings("priority", 87 << 10, 115 << 10)


def test_candidates_go_up_to_four_megabytes_in_octaves_or_parts_of_them() -> None:
    for per_octave, count in ((1, 74), (2, 263)):
        found = candidates(per_octave=per_octave)
        assert len(found) == len(set(found)) == count
        assert max(each.slice_bytes or 0 for each in found) == MOST_SLICE_BYTES
        assert all(size % ROUND_BYTES == 0 for each in found for size in sizes(each))
    assert set(candidates(1 << 20)) < set(candidates()) < set(candidates(per_octave=2))


@given(st.integers(1, 1 << 30), st.integers(1, 1 << 30), st.integers(-6, 6), st.integers(-6, 6))
def test_a_scaled_setting_is_within_the_bounds(size: int, credit: int, by: int, further: int) -> None:
    slice_bytes, credit_bytes = sizes(scaled(TransferSettings("priority", size, credit), by, further))
    assert LEAST_SLICE_BYTES <= slice_bytes <= MOST_SLICE_BYTES
    assert slice_bytes <= credit_bytes <= MOST_CREDIT_BYTES
    if LEAST_SLICE_BYTES <= size * 2.0**by <= MOST_SLICE_BYTES:
        assert math.isclose(slice_bytes, size * 2.0**by, abs_tol=ROUND_BYTES / 2)
