from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.overlap.event_simulation import PULL, PUSH, Simulation
from csd_emu.perfmodel.overlap.layer_work import (
    Costs,
    LayerCost,
    TensorCost,
    compute_seconds,
    exchange_bytes,
    ideal_step_seconds,
    scale_compute,
)
from csd_emu.perfmodel.overlap.simulated_array import SimulatedArray
from csd_emu.perfmodel.overlap.simulated_link import LinkTrace, OwnLink, SharedLink, constant, stepped
from csd_emu.perfmodel.overlap.simulated_step import Simulated, settle, simulate, steady_step_seconds
from csd_emu.perfmodel.overlap.stepped_ranges import BlockStepping
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.send_queue import TransferSettings
from tests.support.communication import blocks, links, models, priorities, sendings, traces

counts = st.integers(1, 3)


def one_layer(size: int, forward: float = 0.5, backward: float = 1.0) -> Costs:
    return (LayerCost("only", (TensorCost("w", size),), forward, backward),)


def scaled(costs: Costs, factor: int) -> Costs:
    """The same model with tensors so many times as large."""
    return tuple(
        replace(layer, tensors=tuple(replace(t, size_bytes=factor * t.size_bytes) for t in layer.tensors))
        for layer in costs
    )


def bytes_seen(run: Simulated, direction: int) -> dict[tuple[int, int, str], list[tuple[int, int]]]:
    """The ranges of each tensor of each exchange that each group moved, in the order of arrival."""
    seen = defaultdict(list)
    for transfer in run.transfers:
        piece = transfer.carried.piece
        if transfer.direction == direction:
            place = (transfer.carried.group, piece.exchange, piece.tensor)
            seen[place].append((piece.offset, piece.offset + piece.size_bytes))
    return seen


@given(models(), links, st.lists(sendings, min_size=3, max_size=6), blocks, counts)
def test_every_byte_goes_each_way_once_whatever_the_settings_of_each_step(
    costs: Costs, link: SharedLink, each: list[TransferSettings], block: int, drives: int
) -> None:
    run = simulate([costs] * drives, link, each, len(each), block_bytes=block, record=True, merge=False)
    sizes = {tensor.name: tensor.size_bytes for layer in costs for tensor in layer.tensors}
    for direction in (PUSH, PULL):
        seen = bytes_seen(run, direction)
        for group in range(drives):
            for exchange in range(len(each) - 1):  # of the last one, some may still be under way
                for name, size in sizes.items():
                    ranges = seen[group, exchange, name]
                    assert [start for start, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
                    assert ranges[-1][1] == size


@given(models(), links, sendings, blocks, counts)
def test_no_schedule_beats_compute_nor_bytes_over_bandwidth(
    costs: Costs, link: SharedLink, sending: TransferSettings, block: int, drives: int
) -> None:
    step = steady_step_seconds([costs] * drives, link, sending, block_bytes=block)
    assert step >= ideal_step_seconds([costs] * drives, link.free_bytes_per_second) * (1 - 1e-9)
    assert step >= exchange_bytes(costs) / link.device_bytes_per_second * (1 - 1e-9)


@given(models(), sendings, counts)
def test_over_a_link_that_takes_no_time_a_step_is_what_is_computed(
    costs: Costs, sending: TransferSettings, drives: int
) -> None:
    link = SharedLink(1e18, 0.0)
    assert steady_step_seconds([costs] * drives, link, sending) == pytest.approx(compute_seconds(costs))


@given(models(), traces(), st.lists(sendings, min_size=4, max_size=4), blocks, st.integers(2, 4))
def test_equal_drives_may_be_computed_as_one(
    costs: Costs, trace: LinkTrace, each: list[TransferSettings], block: int, drives: int
) -> None:
    one = simulate([costs] * drives, trace, each, 4, block_bytes=block)
    apart = simulate([costs] * drives, trace, each, 4, block_bytes=block, merge=False)
    np.testing.assert_allclose(apart.step_seconds, one.step_seconds, rtol=1e-7)
    assert one.groups == (0,) * drives
    assert apart.groups == tuple(range(drives))


@given(models(), links, sendings, st.floats(1.1, 4), st.integers(1, 3))
def test_unlike_drives_may_be_computed_in_groups(
    costs: Costs, link: SharedLink, sending: TransferSettings, slower: float, fast: int
) -> None:
    array = [costs] * fast + [scale_compute(costs, slower)] * 2
    one, apart = (simulate(array, link, sending, 4, merge=merge).step_seconds for merge in (True, False))
    np.testing.assert_allclose(apart, one, rtol=1e-7)


@given(models(), links, sendings, blocks, counts, st.sampled_from([0.25, 2.0, 8.0]))
def test_a_clock_that_runs_slower_slows_everything_alike(
    costs: Costs, link: SharedLink, sending: TransferSettings, block: int, drives: int, factor: float
) -> None:
    slow = replace(
        link,
        bytes_per_second=link.bytes_per_second / factor,
        device_bytes_per_second=link.device_bytes_per_second / factor,
        latency_seconds=link.latency_seconds * factor,
        slice_seconds=link.slice_seconds * factor,
    )
    before = simulate([costs] * drives, link, sending, 4, block_bytes=block).step_seconds
    after = simulate([scale_compute(costs, factor)] * drives, slow, sending, 4, block_bytes=block).step_seconds
    np.testing.assert_allclose(after, factor * before, rtol=1e-9)


@given(models(), links, priorities, blocks, st.sampled_from([2, 16]))
def test_larger_bytes_over_a_wider_link_take_the_same_time(
    costs: Costs, link: SharedLink, sending: TransferSettings, block: int, factor: int
) -> None:
    wide = replace(
        link,
        bytes_per_second=link.bytes_per_second * factor,
        device_bytes_per_second=link.device_bytes_per_second * factor,
    )
    larger = TransferSettings(
        "priority",
        None if sending.slice_bytes is None else factor * sending.slice_bytes,
        None if sending.credit_bytes is None else factor * sending.credit_bytes,
    )
    before = simulate([costs] * 2, link, sending, 4, block_bytes=block).step_seconds
    after = simulate([scaled(costs, factor)] * 2, wide, larger, 4, block_bytes=factor * block).step_seconds
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
    before = simulate([costs] * drives, link, TransferSettings(), 4).step_seconds
    after = simulate([slower] * drives, worse, TransferSettings(), 4).step_seconds
    assert (np.cumsum(after) >= np.cumsum(before) * (1 - 1e-9)).all()


@given(models(), links, sendings, counts)
def test_the_same_run_twice_is_the_same(costs: Costs, link: SharedLink, sending: TransferSettings, drives: int) -> None:
    assert simulate([costs] * drives, link, sending, 3, record=True).transfers == (
        simulate([costs] * drives, link, sending, 3, record=True).transfers
    )


def steps_of(run: Simulation, steps: int) -> list[float]:
    return [run.step() for _ in range(steps)]


@given(models(), links, sendings, counts)
def test_passes_that_are_never_late_are_as_without(
    costs: Costs, link: SharedLink, sending: TransferSettings, drives: int
) -> None:
    late, plain = (
        Simulation(SimulatedArray([costs] * drives), link, sending, merge=False, late=each)
        for each in (lambda: 0.0, None)
    )
    assert steps_of(late, 4) == pytest.approx(steps_of(plain, 4))


@given(st.integers(0, 99), st.integers(1, 4))
def test_lateness_does_not_add_up(seed: int, layers: int) -> None:
    """Without a byte to wait for, whatever so many passes were late by: the last one ends no later than that."""
    costs = tuple(LayerCost(f"layer{n}", (), 0.5, 1.0) for n in range(layers))
    generator = np.random.default_rng(seed)
    run = Simulation(
        SimulatedArray([costs] * 2),
        SharedLink(1.0, 0.0),
        TransferSettings(),
        late=lambda: 0.1 * float(generator.random()),
    )
    seconds = steps_of(run, 20)
    assert max(seconds) > min(seconds)
    assert 0 <= sum(seconds) - 20 * 1.5 * layers <= 0.1


def test_who_has_waited_is_not_due_before_he_has_begun() -> None:
    """Both passes end late, which counts once in each step: parameters are waited for, and come that much later."""
    link = SharedLink(1000.0, 0.25, slice_seconds=0.125)
    run = Simulation(SimulatedArray([one_layer(500)]), link, TransferSettings(), late=lambda: 0.0625)
    assert steps_of(run, 3) == pytest.approx([1.5 + 0.0625 + 2 * (0.125 + 0.5 + 0.25)] * 3)


@given(models(), links, sendings, blocks, counts)
def test_the_settled_step_is_that_of_a_long_run(
    costs: Costs, link: SharedLink, sending: TransferSettings, block: int, drives: int
) -> None:
    steady = steady_step_seconds([costs] * drives, link, sending, block_bytes=block)
    long = simulate([costs] * drives, link, sending, 72, block_bytes=block).step_seconds
    assert steady == pytest.approx(long[-60:].mean(), rel=2e-3)


def test_a_whole_tensor_goes_there_and_back() -> None:
    link = SharedLink(1000.0, 0.25, slice_seconds=0.125)
    step = simulate([one_layer(500)], link, TransferSettings(), 3).step_seconds
    assert step == pytest.approx([1.5 + 2 * (0.125 + 0.5 + 0.25)] * 3)
    assert simulate([one_layer(500)] * 2, link, TransferSettings(), 1).step_seconds == pytest.approx(
        [1.5 + 2 * (1.125 + 0.25)]
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
    run = simulate([one_layer(800)], link, TransferSettings("priority", 100, 100), 2, block_bytes=100, record=True)
    for way in (PUSH, PULL):
        read = [carried.arrival_seconds for direction, carried in run.transfers if direction == way][:8]
        assert np.diff(read) == pytest.approx([0.1 + 2 * 0.25] * 7)


def test_what_a_slice_costs_makes_tiny_slices_slow() -> None:
    link = SharedLink(1000.0, 0.0, slice_seconds=0.01)
    small, large = (
        steady_step_seconds([one_layer(800)], link, TransferSettings("priority", size), block_bytes=100)
        for size in (10, 100)
    )
    assert small - large == pytest.approx(72 * 0.01 + (10 - 1) * 0.01)


def test_the_first_layer_overtakes_the_last() -> None:
    costs = tuple(LayerCost(name, (TensorCost(f"{name}.w", 400),), 0.1, 0.1) for name in ("first", "last"))
    run = simulate([costs], SharedLink(1000.0, 0.0), TransferSettings("priority", 100, 100), 2, record=True)
    pushed = [t.carried.piece.tensor for t in run.transfers if t.direction == PUSH and t.carried.piece.exchange == 0]
    # The last layer's gradients are ready 0.1 s before the first layer's: one slice of them has left, and one leaves.
    assert pushed[:6] == ["last.w", "first.w", "first.w", "first.w", "first.w", "last.w"]


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


def test_a_forward_pass_begins_before_the_last_parameters_have_come() -> None:
    costs = tuple(LayerCost(name, (TensorCost(f"{name}.w", 400),), 0.1, 0.1) for name in ("first", "last"))
    run = simulate([costs], SharedLink(1000.0, 0.0), TransferSettings("priority", 100, 100), 3, record=True)
    begun = [passed.computed.begin_seconds for passed in run.passes if passed.computed[:3] == (1, 0, "forward")]
    arrived = [
        t.carried.arrival_seconds for t in run.transfers if t.direction == PULL and t.carried.piece.exchange == 0
    ]
    assert begun[0] < max(arrived)


def test_a_link_that_narrows_slows_what_is_under_way() -> None:
    link = SharedLink(1000.0, 0.25)
    trace = stepped(link, [0.0, 1.75], [1000.0, 500.0])
    for merge in (True, False):
        # 500 bytes leave at 1.5 s: half of them at the first rate, half at the second; then back at the second.
        run = simulate([one_layer(500)] * 1, trace, TransferSettings(), 1, merge=merge)
        assert run.step_seconds == pytest.approx([1.5 + 0.25 + 0.5 + 0.25 + 1.0 + 0.25])


def test_background_traffic_takes_its_share() -> None:
    link = SharedLink(1000.0, 0.0, background_share=0.5)
    assert steady_step_seconds([one_layer(500)], link, TransferSettings()) == pytest.approx(1.5 + 2.0)


def test_the_host_steps_one_block_after_the_other() -> None:
    slow = BlockStepping(bytes_per_second=1000.0)
    run = Simulation(SimulatedArray([one_layer(500)]), SharedLink(1e9, 0.0), TransferSettings(), slow)
    assert steps_of(run, 2) == pytest.approx([2.0, 2.0], rel=1e-5)


@given(models(), links, sendings, counts)
def test_behind_a_barrier_nothing_comes_back_before_all_is_there(
    costs: Costs, link: SharedLink, sending: TransferSettings, drives: int
) -> None:
    run = Simulation(SimulatedArray([costs] * drives), link, sending, BlockStepping(barrier=True), record=True)
    for _ in range(3):
        run.step()
    for exchange in (0, 1):
        pushed = [c.arrival_seconds for way, c in run.transfers if way == PUSH and c.piece.exchange == exchange]
        stepped = [ready for ready in run.stepped if ready.exchange == exchange]
        assert min(ready.ready_seconds for ready in stepped) >= max(pushed)
        assert sum(ready.end - ready.start for ready in stepped) == exchange_bytes(costs)


@given(models(), links, sendings, counts, st.floats(0.1, 10))
def test_a_host_that_trains_is_waited_for_and_uses_no_link(
    costs: Costs, link: SharedLink, sending: TransferSettings, drives: int, slower: float
) -> None:
    own = scale_compute(costs, slower)
    run = Simulation(SimulatedArray([costs] * drives, host=own), link, sending)
    seconds = settle(run)
    assert seconds >= compute_seconds(own) * (1 - 1e-9)
    wide = SharedLink(1e18, 0.0)
    both = settle(Simulation(SimulatedArray([costs] * drives, host=own), wide, sending))
    assert both == pytest.approx(max(compute_seconds(costs), compute_seconds(own)))


@given(models(), links, sendings, st.floats(1e4, 1e6), st.floats(0, 1e-2))
def test_what_a_drives_own_side_is_adds_to_the_shared_one(
    costs: Costs, link: SharedLink, sending: TransferSettings, rate: float, latency: float
) -> None:
    own = OwnLink(rate, latency)
    as_one = replace(
        link,
        device_bytes_per_second=min(link.device_bytes_per_second, rate),
        latency_seconds=link.latency_seconds + latency,
    )
    run = Simulation(SimulatedArray([costs], [own]), link, sending)
    np.testing.assert_allclose([run.step() for _ in range(4)], simulate([costs], as_one, sending, 4).step_seconds)
    apart = Simulation(SimulatedArray([costs] * 2, [own] * 2), link, sending, merge=False)
    merged = Simulation(SimulatedArray([costs] * 2, [own] * 2), link, sending)
    np.testing.assert_allclose([apart.step() for _ in range(4)], [merged.step() for _ in range(4)], rtol=1e-7)


def test_what_a_narrow_drive_cannot_take_the_others_get() -> None:
    link = SharedLink(1000.0, 0.0)
    array = SimulatedArray([one_layer(500)] * 2, [OwnLink(100.0), OwnLink()])
    run = Simulation(array, link, TransferSettings(), record=True)
    run.step()
    pushed = [carried.arrival_seconds for way, carried in run.transfers if way == PUSH]
    assert pushed[:2] == pytest.approx([1.5 + 500 / 900, 1.5 + 5.0])


def test_settings_hold_from_the_step_on_that_they_are_given_for() -> None:
    run = Simulation(SimulatedArray([one_layer(800)]), SharedLink(1000.0, 0.0), TransferSettings(), record=True)
    for following in (TransferSettings("priority", 400), TransferSettings("priority", 200), None):
        run.step(following)
    sizes = defaultdict(set)
    for _, carried in run.transfers:
        sizes[carried.piece.exchange].add(carried.piece.size_bytes)
    assert [sizes[exchange] for exchange in range(3)] == [{800}, {400}, {200}]


def test_without_a_byte_to_send_a_step_is_what_is_computed() -> None:
    costs = (LayerCost("flat", (), 0.5, 1.0),)
    assert simulate([costs] * 2, SharedLink(1.0, 1.0), TransferSettings(), 3).step_seconds.tolist() == [1.5] * 3


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ([], "needs a drive"),
        ([()], "needs a drive"),
        ([one_layer(1), one_layer(2)], "models differ"),
    ],
)
def test_drives_that_cannot_train_together_are_refused(costs: list[Costs], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SimulatedArray(costs)


def test_numbers_that_nothing_has_are_refused() -> None:
    link = SharedLink(1.0, 0.0)
    with pytest.raises(ConfigurationError, match="2 settings for 3 steps"):
        simulate([one_layer(1)], link, [TransferSettings()] * 2, 3)
    with pytest.raises(ConfigurationError, match="0 settings for 0 steps"):
        simulate([one_layer(1)], link, TransferSettings(), 0)
    with pytest.raises(ConfigurationError, match="blocks of at least a byte"):
        simulate([one_layer(1)], link, TransferSettings(), 1, block_bytes=0)
    with pytest.raises(ConfigurationError, match="bandwidth"):
        replace(link, bytes_per_second=0.0)
    with pytest.raises(ConfigurationError, match="own bandwidth"):
        replace(link, device_bytes_per_second=-1.0)
    with pytest.raises(ConfigurationError, match="a share of 1"):
        replace(link, background_share=1.0)
    with pytest.raises(ConfigurationError, match="forward seconds"):
        one_layer(1, forward=-1.0)
    for starts in ((), (1.0,), (0.0, 0.0), (0.0, float("inf"))):
        with pytest.raises(ConfigurationError, match="trace"):
            LinkTrace(starts, (link,) * len(starts))
    with pytest.raises(ConfigurationError, match="2 starts for 1 bandwidths"):
        stepped(link, [0.0, 1.0], [1.0])


def test_a_trace_says_what_holds_when() -> None:
    link = SharedLink(1.0, 0.0)
    trace = stepped(link, [0.0, 2.0], [3.0, 4.0])
    assert [trace.at(when).bytes_per_second for when in (0.0, 1.9, 2.0, 100.0)] == [3.0, 3.0, 4.0, 4.0]
    assert constant(link).at(7.0) is link
