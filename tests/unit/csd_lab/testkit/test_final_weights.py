"""How far two runs' weights are from each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from csd_lab.testkit.final_weights import all_finite, difference


def test_the_largest_difference_counts_and_what_is_no_number_is_infinite() -> None:
    one: dict[str, Any] = {"w": np.zeros(3, np.float32), "n": np.zeros((), np.int64)}
    assert difference(one, one) == 0.0
    assert difference(one, {"w": np.array([0, -2, 1], np.float32), "n": np.array(1)}) == 2.0
    assert difference(one, {"w": np.zeros(3, np.float32)}) == np.inf
    assert difference(one, one | {"w": np.zeros(4, np.float32)}) == np.inf
    bad: dict[str, Any] = one | {"w": np.array([0, np.nan, 0], np.float32)}
    assert difference(one, bad) == np.inf
    assert (all_finite(one), all_finite(bad)) == (True, False)
