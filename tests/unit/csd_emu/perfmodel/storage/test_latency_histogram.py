"""Quantiles of the histogram are those of its latencies, within 0.8 %."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.storage.latency_histogram import LatencyHistogram
from csd_emu.profiles.flash_geometry import SECOND


@given(st.lists(st.integers(0, 2**50) | st.integers(0, 300), min_size=1), st.sampled_from([0.5, 0.99, 0.999]))
def test_quantiles_are_within_a_bin(latencies: list[int], share: float) -> None:
    histogram = LatencyHistogram()
    for part in (latencies[: len(latencies) // 2], latencies[len(latencies) // 2 :]):
        histogram.add(np.array(part, np.int64))
    exact = float(np.quantile(latencies, share, method="inverted_cdf")) / SECOND
    assert histogram.quantile_seconds(share) == pytest.approx(exact, rel=0.008, abs=1e-12)
    assert histogram.mean_seconds() == pytest.approx(np.mean(latencies) / SECOND, rel=1e-12)
    assert histogram.number == len(latencies)


def test_no_latency_has_no_quantile() -> None:
    assert (LatencyHistogram().quantile_seconds(0.99), LatencyHistogram().mean_seconds()) == (0.0, 0.0)
