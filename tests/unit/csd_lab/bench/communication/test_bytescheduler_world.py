"""The world that slice size and credit are judged in: laws of its clock, and figures that come out of it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_lab.bench.communication.bytescheduler import bytescheduler_world, development_seeds, final_seeds
from csd_lab.bench.communication.bytescheduler.brute_force import find_best
from csd_lab.bench.communication.bytescheduler.drawn_cases import (
    MODEL_BYTES,
    SliceCase,
    WorldLayer,
    draw_case,
    draw_noise,
)
from csd_lab.bench.communication.bytescheduler.event_world import Setting, step_seconds
from tests.support.examples import examples

WHOLE = Setting(1 << 40, 1 << 40)
MIB = 1 << 20


def case_of(*sizes: int, **more: float | int | tuple[float, ...]) -> SliceCase:
    """Return a case of one drive, on which layers compute for 10 + 20 ms behind a link of 1 MiB/s."""
    figures: dict[str, object] = {
        "seed": 0,
        "layers": tuple(WorldLayer(size, 0.01, 0.02) for size in sizes),
        "slowdowns": (1.0,),
        "shared_bytes_per_second": float(MIB),
        "own_bytes_per_second": 1e15,
        "latency_seconds": 0.0,
        "drive_slice_seconds": 0.0,
        "host_slice_seconds": 0.0,
        "buffer_bytes": MIB,
        "noise_sigma": 0.01,
        "noise_correlation": 0.5,
    }
    return SliceCase(**(figures | more))  # type: ignore[arg-type]


def test_a_lone_layer_takes_its_passes_and_its_bytes_both_ways() -> None:
    assert step_seconds(case_of(MIB), WHOLE) == pytest.approx(0.03 + 2.0)


def test_slices_of_blocks_have_both_ways_at_once() -> None:
    """The host steps a block as soon as it is there, so all but one of 64 cross while others are pushed."""
    assert step_seconds(case_of(MIB), Setting(16 << 10, MIB)) == pytest.approx(0.03 + 1.0 + 1 / 64)


def test_each_figure_of_a_slice_is_paid_where_nothing_hides_it() -> None:
    """Two latencies; the drive's processor sends and reads, the host's reads and sends."""
    case = case_of(MIB, latency_seconds=0.1, drive_slice_seconds=0.2, host_slice_seconds=0.05)
    assert step_seconds(case, WHOLE) == pytest.approx(0.03 + 2.0 + 2 * 0.1 + 2 * 0.2 + 2 * 0.05)


def test_a_credit_of_one_slice_waits_for_its_answer() -> None:
    """16 slices, one after the other, each with an answer after two latencies; those of the other way between them."""
    case = case_of(MIB, latency_seconds=0.1)
    assert step_seconds(case, Setting(64 << 10, 1)) > 16 * (1 / 16 + 0.2)
    assert step_seconds(case, Setting(64 << 10, MIB)) < 0.03 + 1.0 + 4 * 0.1 + 3 / 16


def test_the_first_layer_overtakes_the_last_one() -> None:
    """The last layer's gradient is ready first and takes a second; the first layer's forward pass hides half of it."""
    layers = WorldLayer(MIB // 16, 0.5, 0.02), WorldLayer(MIB, 0.01, 0.02)
    case = case_of(layers=layers, buffer_bytes=1 << 40)
    overtaken = step_seconds(case, Setting(16 << 10, 32 << 10))
    assert overtaken < 0.05 + (1 + 1 / 16) * 1.1
    assert step_seconds(case, Setting(16 << 10, 1 << 40)) > overtaken + 0.3


def test_drives_share_the_link_and_the_slowest_sets_the_pace() -> None:
    one = case_of(MIB)
    assert step_seconds(replace(one, slowdowns=(1.0, 1.0)), WHOLE) == pytest.approx(0.03 + 4.0, rel=0.02)
    assert step_seconds(replace(one, slowdowns=(1.0, 21.0)), WHOLE) > 0.63 + 2.0
    narrow = step_seconds(replace(one, own_bytes_per_second=MIB / 4), WHOLE)
    assert narrow == pytest.approx(0.03 + 8.0, rel=0.05)


@settings(max_examples=examples(12), deadline=None)
@given(st.integers(0, 10**6), st.integers(17, 22), st.integers(0, 4))
def test_no_step_is_shorter_than_computing_or_the_wire(seed: int, size: int, many: int) -> None:
    case = draw_case(seed)
    took = step_seconds(case, Setting(1 << size, 1 << (size + many)))
    assert took >= case.compute_seconds * (1 - 1e-9)
    # Of two steps that count, a part of the first one's bytes may have crossed before.
    assert took >= 0.5 * case.wire_seconds
    assert took == step_seconds(case, Setting(1 << size, 1 << (size + many)))


def test_brute_force_finds_the_least_of_a_law_with_one_dip() -> None:
    case = replace(draw_case(5), drive_slice_seconds=0.0)

    def seconds_of(setting: Setting) -> float:
        away = np.log2(setting.slice_bytes / 50e3) ** 2 + np.log2(setting.credit_bytes / 170e3) ** 2
        return float(1 + 0.05 * away)

    _, least = find_best(case, seconds_of)
    assert least <= 1.01


def test_cases_are_within_their_ranges_and_noise_repeats() -> None:
    assert not set(development_seeds.SEEDS) & set(final_seeds.SEEDS)
    for seed in development_seeds.SEEDS:
        case = draw_case(seed)
        assert case == draw_case(seed)
        assert 0.99 * MODEL_BYTES[0] <= case.model_bytes <= 1.01 * MODEL_BYTES[1]
        assert (draw_noise(case, 50) == draw_noise(case, 50)).all()


@pytest.mark.long
def test_a_case_is_judged_and_nothing_beats_the_best() -> None:
    judged = bytescheduler_world.judge(1003)
    figures = bytescheduler_world.figures_of([judged], 0)
    ratios = {name: value for name, value in figures.items() if name.endswith("_over_best")}
    assert len(ratios) == 5
    assert all(0 < value <= 1 for value in ratios.values())
    assert figures["default_over_best_low"] == pytest.approx(figures["default_over_best"])
