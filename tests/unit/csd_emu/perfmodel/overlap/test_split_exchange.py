"""Steps of a model that is cut, event by event: a turn is a quiet time between the passes, for all drives at once."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.perfmodel.overlap.event_simulation import Simulation
from csd_emu.perfmodel.overlap.layer_work import Costs, scale_compute
from csd_emu.perfmodel.overlap.simulated_array import SimulatedArray
from csd_emu.perfmodel.overlap.simulated_link import OwnLink, SharedLink
from csd_emu.perfmodel.overlap.simulated_step import settle, settle_turns
from csd_emu.perfmodel.overlap.split_exchange import SplitExchange
from csd_emu.perfmodel.overlap.stepped_ranges import BlockStepping
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.send_queue import TransferSettings
from tests.support.communication import links, models, sendings
from tests.support.examples import examples

sizes = st.integers(1, 20_000)


@settings(deadline=None, max_examples=examples(40))
@given(models(), links, st.integers(1, 4), sizes, sizes, st.floats(0, 0.1))
def test_of_equal_drives_the_turn_is_what_it_adds(
    costs: Costs, link: SharedLink, drives: int, up: int, down: int, tail: float
) -> None:
    """Whole tensors, no credit: up and down are one piece each, and nothing else is under way."""
    plain = settle(Simulation(SimulatedArray([costs] * drives), link, TransferSettings()))
    turn = SplitExchange((up,) * drives, (down,) * drives, tail)
    cut = settle(Simulation(SimulatedArray([costs] * drives, turn=turn), link, TransferSettings()))
    rate = min(link.free_bytes_per_second / drives, link.device_bytes_per_second)
    quiet = (up + down) / rate + 2 * (link.slice_seconds + link.latency_seconds) + tail
    assert cut == pytest.approx(plain + quiet, rel=1e-6)


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(40))
@given(models(), links, sendings, st.lists(st.tuples(sizes, sizes, st.floats(0.5, 2)), min_size=2, max_size=4))
def test_drives_that_do_the_same_may_be_computed_once(
    costs: Costs, link: SharedLink, sending: TransferSettings, each: list[tuple[int, int, float]]
) -> None:
    doubled = [drive for drive in each for _ in range(2)]
    parts = [
        tuple(replace(layer, forward_seconds=layer.forward_seconds * factor) for layer in costs)
        for _, _, factor in doubled
    ]
    turn = SplitExchange(tuple(up for up, _, _ in doubled), tuple(down for _, down, _ in doubled), 0.01)
    merged, apart = (
        Simulation(SimulatedArray(parts, turn=turn), link, sending, merge=merge) for merge in (True, False)
    )
    assert max(merged.groups) < max(apart.groups)
    for _ in range(4):
        assert merged.step() == pytest.approx(apart.step(), rel=1e-6, abs=1e-9)


@settings(deadline=None, max_examples=examples(40))
@given(models(), links, sendings, sizes, sizes, st.floats(0, 0.1))
def test_the_host_computes_when_all_have_arrived_and_before_any_goes_on(
    costs: Costs, link: SharedLink, sending: TransferSettings, up: int, down: int, tail: float
) -> None:
    slow = tuple(replace(layer, forward_seconds=3 * layer.forward_seconds) for layer in costs)
    turn = SplitExchange((up, 2 * up), (down, 2 * down), tail)
    run = Simulation(SimulatedArray([costs, slow], turn=turn), link, sending, record=True)
    for _ in range(3):
        run.step()
    for step, (begin, end) in enumerate(run.turned[:3]):
        assert end - begin == pytest.approx(tail, abs=1e-9)
        passes = [passed.computed for passed in run.passes if passed.computed.step == step]
        assert all(each.end_seconds <= begin + 1e-9 for each in passes if each.phase == "forward")
        assert all(each.begin_seconds >= end - 1e-9 for each in passes if each.phase == "backward")


@settings(deadline=None, max_examples=examples(60))
@given(
    models(),
    links.map(lambda link: replace(link, turn_bytes=0)),
    sendings,
    st.lists(st.tuples(sizes, sizes, st.floats(0.1, 5), st.floats(0, 0.1)), min_size=1, max_size=4),
    st.floats(0, 0.1),
    st.booleans(),
    st.booleans(),
)
def test_the_first_step_from_turn_to_turn_is_what_all_others_are(
    costs: Costs,
    link: SharedLink,
    sending: TransferSettings,
    each: list[tuple[int, int, float, float]],
    tail: float,
    trains: bool,
    barrier: bool,
) -> None:
    parts = [scale_compute(costs, factor) for _, _, factor, _ in each]
    turn = SplitExchange(tuple(up for up, *_ in each), tuple(down for _, down, *_ in each), tail)

    def begin() -> Simulation:
        own = [OwnLink(latency_seconds=latency) for *_, latency in each]
        array = SimulatedArray(parts, own, scale_compute(costs, 2.0) if trains else None, turn)
        return Simulation(array, link, sending, BlockStepping(bytes_per_second=1e6, barrier=barrier))

    seconds, run = settle_turns(begin()), begin()
    assert seconds == pytest.approx(settle(begin()), rel=1e-6, abs=1e-12)
    turns = [run.turn() for _ in range(4)]  # with a forward pass before the first one
    assert [after - before for before, after in pairwise(turns)] == pytest.approx([seconds] * 3, rel=1e-6, abs=1e-12)


@settings(deadline=None, max_examples=examples(30))
@given(models(), links, sizes, sizes, st.floats(0, 0.1))
def test_the_hosts_own_part_waits_too(costs: Costs, link: SharedLink, up: int, down: int, tail: float) -> None:
    slow = tuple(replace(layer, forward_seconds=10 + layer.forward_seconds) for layer in costs)
    array = SimulatedArray([costs], host=slow, turn=SplitExchange((up,), (down,), tail))
    run = Simulation(array, link, TransferSettings(), record=True)
    run.step()
    begin, _ = run.turned[0]
    assert begin >= 10 * len(costs)


def test_a_turn_for_other_drives_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="2 crossings for 1 drives"):
        SimulatedArray([()], [OwnLink()], turn=SplitExchange((1, 1), (1, 1), 0.0))


@pytest.mark.parametrize(
    ("up", "down", "tail"), [((0,), (1,), 0.0), ((1,), (0,), 0.0), ((1,), (1, 1), 0.0), ((1,), (1,), -1.0)]
)
def test_what_is_no_turn_is_refused(up: tuple[int, ...], down: tuple[int, ...], tail: float) -> None:
    with pytest.raises(ConfigurationError):
        SplitExchange(up, down, tail)
