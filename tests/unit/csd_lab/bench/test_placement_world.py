"""The held-out world of placements: its steps, its links, that it is nobody's timeline, and the figures made of it."""

import ast
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_lab.bench.placement import (
    placement_case,
    placement_development_seeds,
    placement_draws,
    placement_final_seeds,
    placement_world,
)
from csd_lab.bench.placement.bench_placement_world import CASES_PER_SEED, POLICIES, figures_of, judge, problem_of
from csd_lab.bench.placement.placement_case import PlacementTruth
from csd_lab.bench.placement.placement_world import LABEL_BYTES, DrawnPlacement, draw_case, share_fairly
from tests.support.examples import examples


def plain(seed: int, *, overlapped: bool = False, one_drive: bool = True) -> DrawnPlacement:
    """A drawn case in which nothing varies from step to step or drive to drive, and messages cost nothing."""
    case = draw_case(np.random.default_rng(seed))
    truth, told = case.truth, replace(case.told, overlapped=overlapped)
    keep = slice(0, 1) if one_drive else slice(None)
    truth = replace(
        truth,
        forward=truth.forward[keep],
        backward=truth.backward[keep],
        read_seconds=truth.read_seconds[keep],
        own_rate=truth.own_rate[keep],
        group=truth.group[keep],
        step_factor=np.ones_like(truth.step_factor[:, keep]),
        link_factor=np.ones_like(truth.link_factor),
        message_seconds=0.0,
        latency_seconds=0.0,
    )
    return DrawnPlacement(replace(told, batches=told.batches[keep], slowness=told.slowness[keep]), truth)


@pytest.mark.parametrize("seed", range(8))
def test_a_step_of_one_drive_is_the_sum_of_its_parts(seed: int) -> None:
    case = plain(seed)
    told, truth = case.told, case.truth
    rate = min(truth.own_rate[0], truth.port_rate, truth.link_rate)
    for cut in case.cuts:
        weights = sum(layer.weight_bytes for layer in told.layers[:cut])
        moved = cut < len(told.layers)
        crossing = told.batches[0] * ((told.layers[cut].input_bytes or 0) + LABEL_BYTES) if moved else 0
        expected = (
            2 * (weights + crossing) / rate
            + truth.read_seconds[0]
            + truth.forward[0, :cut].sum()
            + truth.backward[0, :cut].sum()
            + (weights + crossing) * truth.encode_rate
            + (weights + crossing) / truth.receive_rate
            + truth.tail_seconds[cut]
            + 6 * weights / truth.sum_rate
        )
        assert case.step_seconds(cut) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("seed", [0, 1, 5, 6])
def test_overlap_hides_and_never_costs_and_computing_is_never_hidden(seed: int) -> None:
    exposed, overlapped = (plain(seed, overlapped=each, one_drive=False) for each in (False, True))
    truth = exposed.truth
    for cut in (exposed.cuts[0], exposed.cuts[len(exposed.cuts) // 2], exposed.cuts[-1]):
        compute = (truth.forward[:, :cut].sum(1) + truth.backward[:, :cut].sum(1) + truth.read_seconds).max()
        assert compute <= overlapped.step_seconds(cut) * (1 + 1e-9)
        assert overlapped.step_seconds(cut) <= exposed.step_seconds(cut) * 1.02


@pytest.mark.parametrize("seed", range(4))
def test_nothing_that_slows_a_case_makes_its_step_shorter(seed: int) -> None:
    case = plain(seed, one_drive=False)
    cut = case.cuts[-1]
    before = case.step_seconds(cut)
    for change in ("link_rate", "own_rate", "receive_rate", "sum_rate"):
        slower = replace(case.truth, **{change: getattr(case.truth, change) / 2})
        assert DrawnPlacement(case.told, slower).step_seconds(cut) >= before * (1 - 1e-6)
    assert DrawnPlacement(case.told, replace(case.truth, forward=2 * case.truth.forward)).step_seconds(cut) > before


@settings(deadline=None, max_examples=examples(100))
@given(st.data())
def test_links_are_shared_max_min_fairly(data: st.DataObject) -> None:
    drives = data.draw(st.integers(1, 8))
    rates = st.floats(1.0, 100.0)
    own = np.array(data.draw(st.lists(rates, min_size=drives, max_size=drives)))
    group = np.sort(np.array(data.draw(st.lists(st.integers(0, 3), min_size=drives, max_size=drives))))
    active = np.array(data.draw(st.lists(st.booleans(), min_size=drives, max_size=drives)))
    truth: PlacementTruth = replace(
        draw_case(np.random.default_rng(0)).truth,
        own_rate=own, group=group, port_rate=data.draw(rates), link_rate=data.draw(rates),
    )  # fmt: skip
    got = share_fairly(truth, active)
    assert (got[~active] == 0).all()
    assert (got <= own * (1 + 1e-9)).all()
    assert got.sum() <= truth.link_rate * (1 + 1e-9)
    ports = {number: got[group == number].sum() for number in set(group.tolist())}
    assert all(carried <= truth.port_rate * (1 + 1e-9) for carried in ports.values())
    for drive in np.flatnonzero(active):  # each has all of its own, or nobody behind its full link has more
        here = got[group == group[drive]]
        assert (
            math.isclose(got[drive], own[drive])
            or (math.isclose(ports[int(group[drive])], truth.port_rate) and got[drive] >= here.max() * (1 - 1e-9))
            or (math.isclose(got.sum(), truth.link_rate) and got[drive] >= got.max() * (1 - 1e-9))
        )


def test_the_world_shares_no_code_with_the_timeline() -> None:
    for module in (placement_world, placement_case, placement_draws):
        tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
        names = [each.module or "" for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
        names += [alias.name for each in ast.walk(tree) if isinstance(each, ast.Import) for alias in each.names]
        assert not [name for name in names if name.split(".")[0] in ("host", "csd_emu", "firmware_agent")]


def test_seeds_of_development_are_none_of_the_final_ones() -> None:
    assert len(placement_development_seeds.SEEDS) == len(placement_final_seeds.SEEDS) == 10
    assert not set(placement_development_seeds.SEEDS) & set(placement_final_seeds.SEEDS)


def test_a_case_is_drawn_again_as_it_was_and_a_policy_is_told_nothing_that_is_hidden() -> None:
    one, other = (draw_case(np.random.default_rng([3, 4])) for _ in range(2))
    assert one.step_seconds(one.cuts[0]) == other.step_seconds(other.cuts[0])
    hidden = replace(one, truth=replace(one.truth, tail_seconds=9 * one.truth.tail_seconds))
    assert problem_of(hidden.told) == problem_of(one.told)


def test_cases_are_judged_by_the_best_of_all_cuts() -> None:
    case = draw_case(np.random.default_rng(5))
    sample = judge(case, 7)
    assert sample["step_seconds"].keys() == set(case.cuts)
    least = min(sample["step_seconds"].values())
    for name in POLICIES:
        ratio = sample[f"{name}_over_best"]
        assert ratio == least / sample["step_seconds"][sample["chosen"][name]] <= 1
    assert sample["chosen"]["none"] == len(case.told.layers)
    others = {f"{name}_over_best": 0.5 for name in POLICIES[1:]}
    samples = [
        {"seed": seed, "measured": case % 2 == 0, "overlapped": case < 6, "auto_over_best": 0.9 + 0.01 * seed, **others}
        for seed in range(10)
        for case in range(CASES_PER_SEED)
    ]
    figures = figures_of(samples)
    assert figures["auto_over_best"] == pytest.approx(0.945)
    assert figures["auto_over_best_low"] == pytest.approx(0.945 - 2.262 * 0.0302765 / 10**0.5, abs=1e-5)
    assert figures["auto_worst"] == pytest.approx(0.9)
    assert figures["none_over_best"] == 0.5
