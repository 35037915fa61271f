import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.perfmodel.overlap.layer_work import Costs, DriveTransfers, compute_seconds, scale_compute
from csd_emu.perfmodel.overlap.steady_steps import steady_step_seconds
from csd_lab.generate.autobyte.tuner_scenario import (
    SILENT,
    BandwidthProcess,
    Setup,
    Surface,
    draw_trace,
    make_slices,
    play,
)
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.send_queue import TransferSettings
from host.policies.transfer.autobyte import AutoByte
from host.policies.transfer.bayesian_search import StaticSearch
from host.policies.transfer.link_conditions import ASSUMED_SLICE_SECONDS, CONFIRM, Level, Watch
from host.policies.transfer.setting_grid import round_bytes
from host.policies.transfer.slice_costs import LinkFit, SliceTable
from host.policies.transfer.speedup_predictor import SimulatedSettings
from host.policies.transfer.transfer_tuner import FixedSending, StepSeen, make_tuner
from tests.support.communication_tuning import COSTS, FIRST, LINK, seen
from tests.support.examples import examples

SETTINGS = tuple(
    TransferSettings("priority", size, credit) for size in (16 << 10, 256 << 10) for credit in (256 << 10, 4 << 20)
)
SETUP = Setup(COSTS, 2, LINK)


@pytest.fixture(scope="module")
def surface() -> Surface:
    return Surface(SETUP, SETTINGS, 1.0)


@pytest.mark.slow
def test_a_surface_is_the_simulation_at_each_level(surface: Surface) -> None:
    for level in (0, 3, 8):
        wanted = [steady_step_seconds([COSTS] * 2, SETUP.link_at(level), each) for each in SETTINGS]
        assert surface.seconds[level] == pytest.approx(wanted)
    assert SETUP.link_at(8).bytes_per_second == 2 * LINK.bytes_per_second


def test_nobody_beats_the_oracle_and_the_best_static_setting_beats_the_others(surface: Surface) -> None:
    levels = np.array([0, 8, 8, 3, 0] * 10)
    best = surface.seconds[levels, surface.best_static(levels)].sum()
    for each in SETTINGS:
        played = play(surface, FixedSending(each), levels, np.random.default_rng(1))
        assert (played.seconds >= surface.oracle_seconds(levels)).all()
        assert played.seconds.sum() >= best
        assert not played.changes


@pytest.mark.slow
@settings(max_examples=examples(15))
@given(st.integers(0, 10**6), st.integers(0, 8))
def test_without_noise_a_constant_link_ends_at_the_best_setting(surface: Surface, seed: int, level: int) -> None:
    tuner = AutoByte(SETTINGS[seed % 4], SimulatedSettings(), settings=SETTINGS)
    played = play(surface, tuner, np.full(12, level), np.random.default_rng(seed), SILENT, lambda: 0.0)
    assert played.seconds[-1] <= surface.oracle_seconds(np.array([level]))[0] * 1.02
    assert played.cpu_seconds == 0


def test_noise_is_what_the_tuner_sees_and_not_what_a_step_takes(surface: Surface) -> None:
    levels = np.zeros(30, np.int64)
    tuner, generator = FixedSending(SETTINGS[0]), np.random.default_rng(1)
    loud, silent = (play(surface, tuner, levels, generator, noise) for noise in (None, SILENT))
    assert np.array_equal(loud.seconds, silent.seconds)


@given(st.integers(0, 10**6))
def test_weather_keeps_its_bounds(seed: int) -> None:
    trace_process = BandwidthProcess(steps=300, mean_gap_steps=40.0)
    trace = draw_trace(np.random.default_rng(seed), trace_process)
    assert trace.levels.shape == (300,)
    assert trace.levels.min() >= 0
    assert trace.levels.max() <= 8 * trace_process.octaves
    again = draw_trace(np.random.default_rng(seed), trace_process)
    assert np.array_equal(again.levels, trace.levels)


@given(st.integers(0, 10**6))
def test_steps_in_bandwidth_have_the_factors_that_were_asked_for(seed: int) -> None:
    trace_process = BandwidthProcess(steps=500, mean_gap_steps=100.0, burst_gap_steps=math.inf, walk=0.0)
    trace = draw_trace(np.random.default_rng(seed), trace_process)
    moved = np.abs(np.diff(trace.levels))
    assert set(np.flatnonzero(moved) + 1) <= set(trace.changes)
    for at, each in enumerate(moved):
        if each and list(trace.changes).count(at + 1) == 1:
            assert each <= 8 * math.log2(10) + 1
            assert each >= 8 * math.log2(2) - 1 or trace.levels[at + 1] in (0, 40)


@pytest.mark.parametrize(
    "wrong",
    [{"least_factor": 0.5}, {"least_factor": 5.0, "most_factor": 4.0}, {"octaves": 2.0}, {"burst_share": (0.5, 1.0)}],
)
def test_weather_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        BandwidthProcess(**wrong)  # type: ignore[arg-type]


@given(st.lists(st.floats(0.98, 1.02), min_size=20, max_size=60), st.floats(1e3, 1e9), st.floats(1.3, 1.45))
def test_a_level_follows_a_small_jump_when_it_is_confirmed_and_no_earlier(
    noise: list[float], figure: float, factor: float
) -> None:
    for times in (factor, 1 / factor):
        level = Level()
        for each in noise:
            level.observe(figure * each)
        assert math.exp(level.value) == pytest.approx(figure, rel=0.021)
        told = [level.observe(figure * times) for _ in range(CONFIRM)]
        assert told == [False] * (CONFIRM - 1) + [True]
        assert math.exp(level.value) == pytest.approx(figure * times)


@given(st.floats(1e3, 1e9), st.sampled_from([0.1, 0.2, 0.5, 2.0, 5.0, 10.0]))
def test_a_level_follows_a_large_jump_at_once(figure: float, factor: float) -> None:
    level = Level()
    for _ in range(8):
        level.observe(figure)
    assert level.observe(figure * factor)
    assert math.exp(level.value) == pytest.approx(figure * factor)


def test_one_disturbed_step_is_no_change() -> None:
    level = Level()
    assert level.observe(100.0)
    for figure in (100.0, 130.0, 100.0, 75.0, 130.0, 75.0, 100.0):
        assert not level.observe(figure)
    assert math.exp(level.value) == pytest.approx(100.0)


def test_a_level_follows_a_slow_walk() -> None:
    level = Level()
    for step in range(400):
        level.observe(100 * 1.01**step)
    assert math.exp(level.value) == pytest.approx(100 * 1.01**399, rel=0.15)


def test_what_was_measured_is_believed_and_nothing_is_before() -> None:
    watch = Watch(1 << 16)
    assert watch.conditions() is None
    watch.observe(replace(seen(1, FIRST, 1.0), drives=(DriveTransfers(COSTS, np.zeros((0, 4))),)))
    assert watch.conditions() is None
    watch.observe(seen(2, FIRST, 1.0))
    known = watch.conditions()
    assert known is not None
    assert (known.participants, known.block_bytes, len(known.drives)) == (2, 1 << 16, 1)
    assert compute_seconds(known.costs) == pytest.approx(compute_seconds(COSTS))
    assert known.link.bytes_per_second == pytest.approx(1e8, rel=0.01)
    assert known.link.latency_seconds == pytest.approx(5e-4, rel=0.01)
    assert known.link.slice_seconds == pytest.approx(4e-4, rel=0.01)


@given(st.floats(1e-5, 1e-2), st.floats(1e6, 1e9))
def test_of_what_slices_cost_nothing_assumed_is_left(slice_seconds: float, rate: float) -> None:
    watch = Watch()
    slices = make_slices(1 / rate, 1e-3, slice_seconds, (4 << 10, 64 << 10, 1 << 20))
    for step in range(1, 4):
        watch.observe(StepSeen(step, 1.0, FIRST, (DriveTransfers(COSTS, slices),) * 2))
    known = watch.conditions()
    assert known is not None
    assert known.doubt is None
    assert known.link.slice_seconds + 64 * 1024 * 2 / known.link.bytes_per_second == pytest.approx(
        slice_seconds + 64 * 1024 / rate, rel=0.2
    )


def test_where_slices_of_one_size_crossed_it_is_in_doubt_what_they_cost() -> None:
    watch = Watch()
    slices = make_slices(1e-8, 1e-3, 4e-4, (64 << 10,) * 8)
    for step in (1, 2):
        watch.observe(StepSeen(step, 1.0, FIRST, (DriveTransfers(COSTS, slices),)))
    known = watch.conditions()
    assert known is not None
    assert known.doubt is not None
    took = 4e-4 + 64 * 1024 * 1e-8
    for each in (known, known.doubt):
        assert each.link.slice_seconds + 64 * 1024 / each.link.bytes_per_second == pytest.approx(took, rel=0.1)
    assert known.doubt.link.slice_seconds > known.link.slice_seconds + 0.3 * took


def test_unlike_drives_each_have_their_own_link_and_those_nobody_waits_for_are_left_out() -> None:
    watch = Watch()
    slow, fast, busy = scale_compute(COSTS, 2.0), scale_compute(COSTS, 0.5), COSTS
    links = {1e-7: fast, 1e-8: slow, 2e-8: busy}
    drives = tuple(
        DriveTransfers(costs, make_slices(rate, 1e-3, 4e-4, (4 << 10, 64 << 10, 1 << 20)))
        for rate, costs in links.items()
    )
    watch.observe(StepSeen(1, 1.0, FIRST, (*drives, *drives)))
    known = watch.conditions()
    assert known is not None
    assert known.participants == 6
    assert [each.own.bytes_per_second for each in known.drives] == pytest.approx([1e7, 5e7, 1e8], rel=0.02)
    assert known.costs == known.drives[-1].costs
    weaker = tuple(DriveTransfers(costs, drives[0].slices) for costs in (fast, slow))
    watch.observe(StepSeen(2, 1.0, FIRST, weaker))
    narrow = watch.conditions()
    assert narrow is not None
    assert len(narrow.drives) == 2
    watch.observe(StepSeen(3, 1.0, FIRST, (DriveTransfers(slow, drives[0].slices), *drives)))
    alone = watch.conditions()
    assert alone is not None
    assert len(alone.drives) == 1


def test_a_few_slices_that_were_held_up_move_nothing() -> None:
    slices = make_slices(1e-8, 1e-3, 4e-4, (64 << 10,) * 20 + (1 << 20,) * 20)
    held = slices.copy()
    held[::9, 3] += 0.002
    found = []
    for each in (slices, held):
        fit = LinkFit(ASSUMED_SLICE_SECONDS)
        fit.observe(SliceTable.of(each))
        found.append(fit.seconds)
    assert found[1][:2] == pytest.approx(found[0][:2], rel=0.3)


def test_answers_that_come_in_bunches_are_counted_by_the_bunch() -> None:
    """Eight slices of 16 KiB are answered together every 32 ms: 4 ms each, whatever the least of them seems to take."""
    ends = 0.032 * (1 + np.arange(64) // 8) + 1e-5 * (np.arange(64) % 8)
    slices = np.column_stack([np.zeros(64), np.full(64, 16384.0), np.zeros(64), ends])
    rows = SliceTable.of(slices).rows
    assert rows[:, 4] == pytest.approx(0.004, rel=0.01)
    assert rows[:, 1] == pytest.approx(16384)


def test_layer_seconds_that_differ_a_little_in_each_step_are_no_change_and_twice_as_long_ones_are() -> None:
    def step(costs: Costs) -> StepSeen:
        one = seen(1, FIRST, 1.0)
        return replace(one, drives=tuple(DriveTransfers(costs, each.slices) for each in one.drives))

    watch, generator = Watch(), np.random.default_rng(1)
    jittery = [scale_compute(COSTS, float(each)) for each in np.exp(0.02 * generator.standard_normal(40))]
    assert watch.observe(step(jittery[0]))
    assert not any([watch.observe(step(each)) for each in jittery])
    known = watch.conditions()
    assert known is not None
    assert compute_seconds(known.costs) == pytest.approx(compute_seconds(COSTS), rel=0.08)
    assert watch.observe(step(scale_compute(COSTS, 2.0)))
    slow = watch.conditions()
    assert slow is not None
    assert compute_seconds(slow.costs) == pytest.approx(2 * compute_seconds(COSTS), rel=0.01)
    assert watch.observe(step(COSTS[:2]))


@given(st.floats(1, 1e9), st.sampled_from([1 << 20, 16 << 20]))
def test_rounded_sizes_are_whole_and_within_bounds(size: float, most: int) -> None:
    found = round_bytes(size, most)
    assert found % 1024 == 0
    assert 1024 <= found <= most
    assert found == 1024 or found == most or abs(found - size) <= 512


def test_each_name_makes_its_tuner() -> None:
    assert make_tuner("fifo", FIRST).sending(1) == TransferSettings()
    assert make_tuner("priority", FIRST).sending(7) == FIRST
    assert isinstance(make_tuner("search", FIRST, 3), StaticSearch)
    assert isinstance(make_tuner("autobyte", FIRST), AutoByte)
