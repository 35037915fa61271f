"""The changing world that AutoByte is judged in: what is drawn, what is seen, and figures that come out of it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_lab.bench.communication.autobyte import autobyte_development_seeds, autobyte_final_seeds, autobyte_world
from csd_lab.bench.communication.autobyte.autobyte_world import as_setting, figures_of, judge_in, told_link
from csd_lab.bench.communication.autobyte.changing_cases import STEPS, ChangingCase, DrivesState, draw_case
from csd_lab.bench.communication.autobyte.changing_world import ChangingWorld, blur
from csd_lab.bench.communication.bytescheduler.drawn_cases import WorldLayer
from csd_lab.bench.communication.bytescheduler.event_world import Setting
from firmware_agent.common.send_queue import TransferSettings
from host.policies.transfer.autobyte import AutoByte
from host.policies.transfer.setting_grid import default_setting
from host.policies.transfer.transfer_tuner import FixedSending
from tests.support.examples import examples


def state(shared: float = 1e7, slice_seconds: float = 1e-4, drives: int = 2) -> DrivesState:
    layers = tuple(WorldLayer(size, 0.004, 0.008) for size in (20_000, 100_000, 200_000))
    own = tuple(3 * shared for _ in range(drives))
    costs = tuple(slice_seconds for _ in range(drives))
    return DrivesState(layers, (1.0,) * drives, shared, own, 1e-4, costs, slice_seconds / 10, 1 << 20)


def small_case() -> ChangingCase:
    """Ten steps behind a link that then carries a fifth, and slices that then cost ten times as much."""
    at = (0,) * 10 + (1,) * 10 + (2,) * 10
    return ChangingCase(1, (state(), state(2e6), state(1e7, 1e-3)), at, np.ones(30), 1e-5, 0.01)


@settings(max_examples=examples(20))
@given(st.integers(0, 10**6))
def test_a_drawn_case_has_states_for_all_of_its_steps_and_begins_with_the_first(seed: int) -> None:
    case = draw_case(seed)
    assert len(case.at) == len(case.step_noise) == STEPS
    assert case.at[0] == 0
    assert set(case.at) == set(range(len(case.states)))
    assert len({each.layers for each in case.states}) == 1
    assert len(set(case.states)) == len(case.states)


def test_seeds_of_development_and_of_the_final_figures_are_others() -> None:
    spent = {*autobyte_development_seeds.SEEDS, *autobyte_development_seeds.SPENT_SEEDS}
    assert not spent & set(autobyte_final_seeds.SEEDS)


def test_slices_of_a_step_are_about_the_models_bytes_each_way() -> None:
    """Those that left in it, but for what is still under way at its end."""
    world = ChangingWorld(small_case())
    for slices in world.slices(0, Setting(32 << 10, 64 << 10)):
        assert 0.5 * state().model_bytes < slices.size_bytes.sum() <= state().model_bytes
        assert (slices.end_seconds >= slices.begin_seconds).all()
        blurred = blur(slices, 1e-4, 1.1, world.generator())
        assert (np.diff(blurred.end_seconds) >= 0).all()
        assert (blurred.end_seconds >= 1.1 * slices.end_seconds).all()


@pytest.mark.slow
def test_nobody_beats_the_oracle_and_a_fixed_setting_is_no_better_than_the_best_in_hindsight() -> None:
    world = ChangingWorld(small_case())
    default = default_setting(state().model_bytes, told_link(state()))
    judged = judge_in(world, FixedSending)
    assert judged["over_oracle"] <= 1
    assert judged["over_hindsight"] <= 1 <= judged["oracle_over_hindsight"]
    assert judged["over_untuned"] == pytest.approx(1.0)
    assert world.total_seconds(as_setting(default)) >= world.oracle_seconds()


@pytest.mark.slow
def test_autobyte_follows_what_changes_in_the_small_case() -> None:
    judged = judge_in(ChangingWorld(small_case()), AutoByte)
    assert judged["changes"] > 0
    assert judged["over_oracle"] > 0.8


def test_beforehand_a_search_stays_at_the_default_where_nothing_is_better() -> None:
    layers = (WorldLayer(40_000, 0.4, 0.8), WorldLayer(60_000, 0.4, 0.8))
    idle = ChangingCase(1, (replace(state(1e12, 0.0, 1), layers=layers),), (0,) * 4, np.ones(4), 1e-5, 0.01)
    default = as_setting(TransferSettings("priority", 70_000, 90_000))
    assert ChangingWorld(idle).best_beforehand(default) == default


def test_figures_are_means_and_only_cases_with_a_gain_count_for_its_share() -> None:
    judged = [
        dict.fromkeys(autobyte_world.RATIOS, ratio)
        | {"oracle_gain": gain, "share_of_oracle_gain": share, "changes": 2, "seed": 1}
        for ratio, gain, share in ((0.9, 0.1, 0.5), (1.1, 0.2, 0.7), (1.3, 0.01, -9.0))
    ]
    figures = figures_of(judged, 0)
    assert figures["share_of_oracle_gain"] == pytest.approx(0.6)
    assert figures["over_hindsight"] == pytest.approx(1.1)
    assert figures["over_hindsight_low"] < 1.1
    assert figures["worst_over_untuned"] == 0.9
    assert figures["gaining_cases"] == 2
