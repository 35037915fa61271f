"""Host loads: the same commands whatever the windows, at the rate and of the kind that was asked for."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.host_load import (
    DIURNAL,
    LEAST_IOPS,
    HostLoad,
    LoadGenerator,
    _logarithm,
)
from csd_emu.profiles.flash_geometry import SECOND, FlashParameters
from firmware_agent.common.errors import ConfigurationError

FLASH = FlashParameters(blocks_per_plane=32)
PAGES = FLASH.namespace_pages


@given(
    cuts=st.lists(st.integers(0, SECOND), max_size=5),
    shape=st.sampled_from([(1,), (1, 0, 0), DIURNAL]),
    seed=st.integers(0, 2**64 - 1),
)
def test_windows_of_any_sizes_give_the_same_commands(cuts: list[int], shape: tuple[int, ...], seed: int) -> None:
    load = HostLoad(8192, PAGES, 0.5, iops=5000, shape=shape, period_ns=SECOND // 3, seed=seed)
    whole = LoadGenerator(load, FLASH).take_until(SECOND)
    generator = LoadGenerator(load, FLASH)
    parts = [generator.take_until(cut) for cut in [*sorted(cuts), SECOND]]
    for name, column in whole.items():
        assert np.concatenate([part[name] for part in parts]).tolist() == column.tolist()
    assert np.all(np.diff(whole["arrival_ns"]) >= 0)
    assert np.all(whole["page"] % 2 == 0)
    assert np.all((whole["page"] >= 0) & (whole["page"] + 2 <= PAGES))


@pytest.mark.parametrize("shape", [(1,), (1, 0, 0, 0), (3, 1)])
def test_the_rate_is_the_one_asked_for_and_follows_the_shape(shape: tuple[int, ...]) -> None:
    load = HostLoad(4096, PAGES, 0.7, iops=20_000, shape=shape, period_ns=SECOND // 10)
    commands = LoadGenerator(load, FLASH).take_until(2 * SECOND)
    assert len(commands["page"]) == pytest.approx(40_000, rel=4 / math.sqrt(40_000))
    assert np.mean(commands["writes"]) == pytest.approx(0.3, abs=0.01)
    slot = commands["arrival_ns"] % load.period_ns * len(shape) // load.period_ns
    assert np.bincount(slot, minlength=len(shape)) / len(slot) == pytest.approx(np.array(shape) / sum(shape), abs=0.015)
    if shape == (1,):
        gaps = np.diff(commands["arrival_ns"])
        assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.03)


def test_fixed_gaps_are_equal_and_sequential_commands_follow_each_other() -> None:
    load = HostLoad(16384, 64, sequential=True, iops=1000, poisson=False, first_page=128)
    commands = LoadGenerator(load, FLASH).take_until(SECOND // 10)
    assert set(np.diff(commands["arrival_ns"]).tolist()) == {SECOND // 1000}
    assert commands["page"][:18].tolist() == [128 + 4 * (number % 16) for number in range(18)]
    assert set(commands["pages"].tolist()) == {4}


def test_a_day_has_as_many_commands_as_the_mean_rate_says() -> None:
    load = HostLoad(4096, PAGES, iops=1, poisson=False, shape=DIURNAL, period_ns=(86_400 * SECOND))
    commands = LoadGenerator(load, FLASH).take_until(86_400 * SECOND)
    hours = np.bincount(commands["arrival_ns"] // ((86_400 * SECOND) // 24), minlength=24)
    assert hours.sum() == pytest.approx(86_400, abs=1)
    assert hours / hours.sum() == pytest.approx(np.array(DIURNAL) / sum(DIURNAL), abs=1e-4)


@pytest.mark.parametrize("poisson", [False, True])
def test_the_least_rate_has_times_for_as_long_as_traces_are(poisson: bool) -> None:
    load = HostLoad(4096, PAGES, iops=LEAST_IOPS, poisson=poisson, shape=DIURNAL, period_ns=2**50 - 1, seed=2**64 - 1)
    arrivals = LoadGenerator(load, FLASH).take_until(2**60)["arrival_ns"]
    assert len(arrivals) == pytest.approx(2**60 / SECOND * LEAST_IOPS, rel=0.05)
    assert arrivals[0] >= 0 <= np.diff(arrivals).min()


@given(st.lists(st.floats(2.0**-53, 1), min_size=1))
def test_the_logarithm_is_one(values: list[float]) -> None:
    assert _logarithm(np.array(values)) == pytest.approx(np.log(values), rel=1e-13, abs=1e-14)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"block_bytes": 0}, "block_bytes"),
        ({"read_share": 1.5}, "read_share"),
        ({"iops": 0.0}, "iops or queue_depth"),
        ({"queue_depth": 4}, "iops or queue_depth"),
        ({"iops": -1.0, "queue_depth": 4}, "iops or queue_depth"),
        ({"iops": 1e-9}, "iops or queue_depth .one of them, iops from 1e-05."),
        ({"iops": 1e-300}, "iops or queue_depth"),
        ({"iops": 1e-9, "queue_depth": 4}, "iops or queue_depth"),
        ({"iops": math.nan}, "iops or queue_depth"),
        ({"queue_depth": -1}, "iops or queue_depth"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"shape": (0, 0)}, "shape"),
        ({"shape": (2, -1)}, "shape"),
        ({"period_ns": 0}, "period_ns"),
        ({"first_page": 1}, "first_page or span_pages"),
        ({"span_pages": 0}, "first_page or span_pages"),
        ({"iops": math.inf}, "iops or queue_depth"),
    ],
)
def test_an_impossible_load_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"host load: .*{says}"):
        LoadGenerator(HostLoad(**{"block_bytes": 4096, "span_pages": PAGES, "iops": 10.0} | changes), FLASH)
