"""Steps of a model that is cut: a turn is a quiet time between the passes, for all drives at once."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.perfmodel.overlap.layer_work import Costs, scale_compute
from csd_emu.perfmodel.overlap.simulated_link import SharedLink
from csd_emu.perfmodel.overlap.steady_steps import settle, steady_step_seconds
from firmware_agent.common.send_queue import TransferSettings
from tests.support.communication import Case, links, models, sendings
from tests.support.examples import examples

sizes = st.integers(1, 20_000)


@settings(deadline=None, max_examples=examples(40))
@given(models(), links, st.integers(1, 4), sizes, sizes, st.floats(0, 0.1))
def test_of_equal_drives_the_turn_is_what_it_adds(
    costs: Costs, link: SharedLink, drives: int, up: int, down: int, tail: float
) -> None:
    """Whole tensors, no credit: up and down are one piece each, and nothing else is under way."""
    array, fifo = [costs] * drives, TransferSettings()
    cut = settle(Case(array, link, fifo, crossing=[(up, down)] * drives, tail_seconds=tail).steady())
    rate = link.bytes_per_second / drives
    quiet = (up + down) / rate + 2 * (link.slice_seconds + link.latency_seconds) + tail
    assert cut == pytest.approx(steady_step_seconds(array, link, fifo) + quiet, rel=1e-6)


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(40))
@given(models(), links, sendings, st.lists(st.tuples(sizes, sizes, st.floats(0.5, 2)), min_size=2, max_size=4))
def test_drives_that_do_the_same_may_be_computed_once(
    costs: Costs, link: SharedLink, sending: TransferSettings, each: list[tuple[int, int, float]]
) -> None:
    doubled = [drive for drive in each for _ in range(2)]
    crossing = [(up, down) for up, down, _ in doubled]
    case = Case(
        [scale_compute(costs, factor) for *_, factor in doubled], link, sending, crossing=crossing, tail_seconds=0.01
    )
    assert case.steps(4, merge=False) == pytest.approx(case.steps(4), rel=1e-6, abs=1e-9)


@settings(deadline=None, max_examples=examples(40))
@given(models(), links, sendings, sizes, sizes, st.floats(0, 0.1), st.booleans())
def test_the_host_computes_when_all_have_arrived_and_before_any_goes_on(
    costs: Costs, link: SharedLink, sending: TransferSettings, up: int, down: int, tail: float, trains: bool
) -> None:
    slow = tuple(replace(layer, forward_seconds=3 * layer.forward_seconds) for layer in costs)
    crossing = [(up, down), (2 * up, 2 * down)]
    host = slow if trains else None
    run = Case([costs, slow], link, sending, crossing=crossing, host=host, tail_seconds=tail).steady()
    for _ in range(3):
        run.step()
        pushed, ((end, *_),), pulled = run.crossed[-1]
        assert all(each[0] <= end - tail + 1e-9 for each in pushed)
        assert all(passes[-1][1] <= end - tail + 1e-9 for passes in run.forward)
        assert all(ends[0] >= end - 1e-9 for ends in run.backward)
        assert all(each[1] >= end - 1e-9 for each in pulled)


@settings(deadline=None, max_examples=examples(60))
@given(
    models(),
    links,
    sendings,
    st.lists(st.tuples(sizes, sizes, st.floats(0.1, 5)), min_size=1, max_size=4),
    st.floats(0, 0.1),
    st.booleans(),
)
def test_from_the_second_step_on_all_are_alike(
    costs: Costs,
    link: SharedLink,
    sending: TransferSettings,
    each: list[tuple[int, int, float]],
    tail: float,
    trains: bool,
) -> None:
    parts = [scale_compute(costs, factor) for *_, factor in each]
    crossing = [(up, down) for up, down, _ in each]
    host = scale_compute(costs, 2.0) if trains else None
    case = Case(parts, link, sending, crossing=crossing, host=host, tail_seconds=tail)
    assert case.steps(5)[1:] == pytest.approx([settle(case.steady())] * 4, rel=1e-6, abs=1e-12)
