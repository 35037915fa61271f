"""Laws of steps whose exchange overlaps computing, and cases that can be worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.overlap.layer_work import (
    Costs,
    LayerCost,
    TensorCost,
    compute_seconds,
    exchange_bytes,
    scale_compute,
)
from csd_emu.perfmodel.overlap.simulated_link import OwnLink, SharedLink
from csd_emu.perfmodel.overlap.steady_steps import settle, steady_step_seconds
from csd_emu.perfmodel.overlap.stepped_ranges import BlockStepping
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.send_queue import TransferSettings
from tests.support.communication import Case, blocks, links, models, priorities, sendings

counts = st.integers(1, 3)


def one_layer(size: int, forward: float = 0.5, backward: float = 1.0) -> Costs:
    return (LayerCost("only", (TensorCost("w", size),), forward, backward),)


def scaled(costs: Costs, factor: int) -> Costs:
    """The same model with tensors so many times as large."""
    return tuple(
        replace(layer, tensors=tuple(replace(t, size_bytes=factor * t.size_bytes) for t in layer.tensors))
        for layer in costs
    )


@given(models(), links, sendings, blocks, counts)
def test_no_schedule_beats_compute_nor_bytes_over_bandwidth(
    costs: Costs, link: SharedLink, sending: TransferSettings, block: int, drives: int
) -> None:
    step = steady_step_seconds([costs] * drives, link, sending, block_bytes=block)
    wire = drives * exchange_bytes(costs) / link.bytes_per_second
    assert step >= max(wire, compute_seconds(costs)) * (1 - 1e-9)


@given(models(), sendings, counts)
def test_over_a_link_that_takes_no_time_a_step_is_what_is_computed(
    costs: Costs, sending: TransferSettings, drives: int
) -> None:
    link = SharedLink(1e18, 0.0)
    assert steady_step_seconds([costs] * drives, link, sending) == pytest.approx(compute_seconds(costs))


@given(models(), links, sendings, blocks, counts, st.sampled_from([0.25, 2.0, 8.0]))
def test_a_clock_that_runs_slower_slows_everything_alike(
    costs: Costs, link: SharedLink, sending: TransferSettings, block: int, drives: int, factor: float
) -> None:
    slow = replace(
        link,
        bytes_per_second=link.bytes_per_second / factor,
        latency_seconds=link.latency_seconds * factor,
        slice_seconds=link.slice_seconds * factor,
    )
    before = np.array(Case([costs] * drives, link, sending, BlockStepping(block)).steps(4))
    after = np.array(Case([scale_compute(costs, factor)] * drives, slow, sending, BlockStepping(block)).steps(4))
    np.testing.assert_allclose(after, factor * before, rtol=1e-9)


@given(models(), links, priorities, blocks, st.sampled_from([2, 16]))
def test_larger_bytes_over_a_wider_link_take_the_same_time(
    costs: Costs, link: SharedLink, sending: TransferSettings, block: int, factor: int
) -> None:
    wide = replace(link, bytes_per_second=link.bytes_per_second * factor)
    larger = TransferSettings(
        "priority",
        None if sending.slice_bytes is None else factor * sending.slice_bytes,
        None if sending.credit_bytes is None else factor * sending.credit_bytes,
    )
    before = np.array(Case([costs] * 2, link, sending, BlockStepping(block)).steps(4))
    after = np.array(Case([scaled(costs, factor)] * 2, wide, larger, BlockStepping(factor * block)).steps(4))
    np.testing.assert_allclose(after, before, rtol=1e-9)


@given(models(), links, counts, st.floats(1, 10), st.sampled_from(["bandwidth", "latency", "slice", "compute"]))
def test_fifo_is_never_faster_with_less_to_do_it_with(
    costs: Costs, link: SharedLink, drives: int, factor: float, what: str
) -> None:
    """Of equal drives: nothing overtakes, so each moment is a maximum of sums. Priority has Graham's anomalies."""
    worse = {
        "bandwidth": replace(link, bytes_per_second=link.bytes_per_second / factor),
        "latency": replace(link, latency_seconds=link.latency_seconds * factor),
        "slice": replace(link, slice_seconds=link.slice_seconds * factor),
    }.get(what, link)
    slower = scale_compute(costs, factor) if what == "compute" else costs
    before = Case([costs] * drives, link, TransferSettings()).steps(4)
    after = Case([slower] * drives, worse, TransferSettings()).steps(4)
    assert (np.cumsum(after) >= np.cumsum(before) * (1 - 1e-9)).all()


@given(models(), links, sendings, blocks, counts)
def test_the_settled_step_is_that_of_a_long_run(
    costs: Costs, link: SharedLink, sending: TransferSettings, block: int, drives: int
) -> None:
    steady = steady_step_seconds([costs] * drives, link, sending, block_bytes=block)
    long = np.array(Case([costs] * drives, link, sending, BlockStepping(block)).steps(72))
    assert steady == pytest.approx(long[-60:].mean(), rel=2e-3)


def test_a_whole_tensor_goes_there_and_back() -> None:
    link = SharedLink(1000.0, 0.25, slice_seconds=0.125)
    step = Case([one_layer(500)], link, TransferSettings()).steady()
    assert [step.step() for _ in range(4)] == pytest.approx([1.5] + [1.5 + 2 * (0.125 + 0.5 + 0.25)] * 3)
    assert steady_step_seconds([one_layer(500)] * 2, link, TransferSettings()) == pytest.approx(
        1.5 + 2 * (1.125 + 0.25)
    )


def test_a_large_tensor_comes_back_while_it_is_still_sent() -> None:
    """Of 8 blocks the last one alone is not hidden; whole, the way there and the way back follow each other."""
    link = SharedLink(1000.0, 0.25)
    blocks, whole = (
        steady_step_seconds([one_layer(800)], link, s, block_bytes=100)
        for s in (TransferSettings("priority", 100), TransferSettings())
    )
    assert blocks == pytest.approx(1.5 + 0.8 + 0.1 + 2 * 0.25)
    assert whole == pytest.approx(1.5 + 0.8 + 0.8 + 2 * 0.25)


def test_credit_below_the_bandwidth_delay_product_starves_the_link() -> None:
    """One slice under way at a time: the next leaves when the last is known to be read."""
    link = SharedLink(1000.0, 0.25)
    starved, sated = (
        steady_step_seconds([one_layer(800)], link, TransferSettings("priority", 100, credit), block_bytes=100)
        for credit in (100, 700)
    )
    # Each way 8 slices of 0.1 s; the last one's way back begins when the one before it is known to be read.
    assert starved == pytest.approx(1.5 + 7 * (0.1 + 2 * 0.25) + 2 * (0.1 + 0.25))
    assert sated == pytest.approx(1.5 + 0.8 + 0.1 + 2 * 0.25)
    run = Case([one_layer(800)], link, TransferSettings("priority", 100, 100), BlockStepping(100)).steady()
    settle(run)
    for arrived in (run.exchanged[-1].pushed, run.exchanged[-1].pulled):
        assert np.diff([arrival[0] for arrival in arrived]) == pytest.approx([0.1 + 2 * 0.25] * 7)


def test_what_a_slice_costs_makes_tiny_slices_slow() -> None:
    link = SharedLink(1000.0, 0.0, slice_seconds=0.01)
    small, large = (
        steady_step_seconds([one_layer(800)], link, TransferSettings("priority", size), block_bytes=100)
        for size in (10, 100)
    )
    assert small - large == pytest.approx(72 * 0.01 + (10 - 1) * 0.01)


def test_priority_hides_what_fifo_leaves_exposed() -> None:
    costs = tuple(LayerCost(f"layer{n}", (TensorCost(f"w{n}", 400),), 0.2, 0.4) for n in range(6))
    link = SharedLink(500.0, 0.0)
    fifo, priority = (
        steady_step_seconds([costs], link, sending, block_bytes=100)
        for sending in (TransferSettings(), TransferSettings("priority", 100, 100))
    )
    # 3.6 s of computing, 4.8 s each way. Under fifo the first layer's parameters come last, so all layers' forward
    # passes follow the wire: one gradient ready (0.4), six pushed (4.8), one pulled (0.8), and 1.2 s forward.
    assert fifo == pytest.approx(0.4 + 4.8 + 0.8 + 1.2)
    assert priority < 5.7


def test_without_a_byte_to_send_a_step_is_what_is_computed() -> None:
    costs = (LayerCost("flat", (), 0.5, 1.0),)
    assert Case([costs] * 2, SharedLink(1.0, 1.0), TransferSettings()).steps(3) == [1.5] * 3


@given(models(), links, sendings, blocks, counts, st.floats(1.0, 4))
def test_every_byte_goes_each_way_once_and_none_comes_back_before_all_have_sent_it(
    costs: Costs, link: SharedLink, sending: TransferSettings, block: int, drives: int, slower: float
) -> None:
    run = Case([costs] * drives + [scale_compute(costs, slower)], link, sending, BlockStepping(block)).steady(False)
    settle(run)
    pushed, stepped, pulled = run.exchanged[-1]
    sizes = [tensor.size_bytes for layer in costs for tensor in layer.tensors]
    for arrived, groups in ((pushed, range(drives + 1)), (pulled, set(run.sides))):
        for group in groups:
            for order, size in enumerate(sizes):
                assert sum(each[-1] for each in arrived if each[3:5] == (group, order)) == size
    for order, size in enumerate(sizes):
        assert [(start, end) for _, of, start, end in stepped if of == order][-1][1] == size
        last = {group: [each for each in pushed if each[3:5] == (group, order)][-1] for group in range(drives + 1)}
        assert max(ready for ready, of, *_ in stepped if of == order) >= max(each[0] for each in last.values())
    for arrival, begin, end, *_ in (*pushed, *pulled):
        assert begin <= end <= arrival
    assert min(each[1] for each in pulled) >= min(ready for ready, *_ in stepped)


@given(models(), links, sendings, st.lists(st.floats(0.5, 4), min_size=1, max_size=3), st.integers(1, 3))
def test_drives_that_do_the_same_may_be_computed_once(
    costs: Costs, link: SharedLink, sending: TransferSettings, factors: list[float], each: int
) -> None:
    case = Case([scale_compute(costs, factor) for factor in factors for _ in range(each)], link, sending)
    np.testing.assert_allclose(case.steps(4, merge=False), case.steps(4), rtol=1e-7)


def test_the_first_layer_overtakes_the_last() -> None:
    costs = tuple(LayerCost(name, (TensorCost(f"{name}.w", 400),), 0.1, 0.1) for name in ("first", "last"))
    run = Case([costs], SharedLink(1000.0, 0.0), TransferSettings("priority", 100, 100)).steady()
    settle(run)
    # The last layer's gradients are ready 0.1 s before the first layer's: one slice of them has left, and one leaves.
    assert [order for *_, order, _ in run.exchanged[-1].pushed][:6] == [1, 0, 0, 0, 0, 1]
    forward = run.forward[0]
    assert forward[0][0] < max(arrival[0] for arrival in run.exchanged[-1].pulled)


@given(models(), links, sendings, counts)
def test_behind_a_barrier_nothing_comes_back_before_all_is_there(
    costs: Costs, link: SharedLink, sending: TransferSettings, drives: int
) -> None:
    run = Case([costs] * drives, link, sending, BlockStepping(barrier=True)).steady()
    settle(run)
    pushed, stepped, _ = run.exchanged[-1]
    assert min(ready for ready, *_ in stepped) >= max(arrival[0] for arrival in pushed)
    assert sum(end - start for *_, start, end in stepped) == exchange_bytes(costs)


@given(models(), links, sendings, counts, st.floats(0.1, 10))
def test_a_host_that_trains_is_waited_for_and_uses_no_link(
    costs: Costs, link: SharedLink, sending: TransferSettings, drives: int, slower: float
) -> None:
    own = scale_compute(costs, slower)
    assert settle(Case([costs] * drives, link, sending, host=own).steady()) >= compute_seconds(own) * (1 - 1e-9)
    both = settle(Case([costs] * drives, SharedLink(1e18, 0.0), sending, host=own).steady())
    assert both == pytest.approx(max(compute_seconds(costs), compute_seconds(own)))


@given(models(), links, sendings, st.floats(1e4, 1e6), st.floats(0, 1e-2))
def test_what_a_drives_own_side_is_adds_to_the_shared_one(
    costs: Costs, link: SharedLink, sending: TransferSettings, rate: float, latency: float
) -> None:
    as_one = replace(
        link, bytes_per_second=min(link.bytes_per_second, rate), latency_seconds=link.latency_seconds + latency
    )
    own = Case([costs], link, sending, own=[OwnLink(rate, latency)])
    np.testing.assert_allclose(own.steps(4), Case([costs], as_one, sending).steps(4))


def test_what_a_narrow_drive_cannot_take_the_others_get() -> None:
    run = Case(
        [one_layer(500)] * 2, SharedLink(1000.0, 0.0), TransferSettings(), own=[OwnLink(100.0), OwnLink()]
    ).steady()
    run.step()
    run.step()
    assert [each[0] for each in run.exchanged[-1].pushed] == pytest.approx([1.5 + 500 / 900, 1.5 + 5.0])


def test_the_host_steps_one_block_after_the_other() -> None:
    slow = BlockStepping(bytes_per_second=1000.0)
    run = Case([one_layer(500)], SharedLink(1e9, 0.0), TransferSettings(), slow)
    assert settle(run.steady()) == pytest.approx(2.0, rel=1e-5)


@pytest.mark.parametrize(
    ("costs", "message"),
    [([], "needs a drive"), ([()], "needs a drive"), ([one_layer(1), one_layer(2)], "models differ")],
)
def test_drives_that_cannot_train_together_are_refused(costs: list[Costs], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        steady_step_seconds(costs, SharedLink(1.0, 0.0), TransferSettings())


def test_numbers_that_nothing_has_are_refused() -> None:
    link = SharedLink(1.0, 0.0)
    with pytest.raises(ConfigurationError, match="blocks of at least a byte"):
        steady_step_seconds([one_layer(1)], link, TransferSettings(), block_bytes=0)
    with pytest.raises(ConfigurationError, match="bandwidth"):
        replace(link, bytes_per_second=0.0)
    with pytest.raises(ConfigurationError, match="forward seconds"):
        one_layer(1, forward=-1.0)
