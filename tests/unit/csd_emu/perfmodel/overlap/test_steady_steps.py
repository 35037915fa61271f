"""Steps worked out phase by phase against those of every event, and decisions that rest on them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.perfmodel.overlap.flow import LinkFlow
from csd_emu.perfmodel.overlap.layer_work import Costs, LayerCost, scale_compute
from csd_emu.perfmodel.overlap.simulated_link import OwnLink, SharedLink
from csd_emu.perfmodel.overlap.steady_steps import settle
from csd_emu.perfmodel.overlap.stepped_ranges import BlockStepping
from csd_emu.perfmodel.split.cut_costs import CutCosts
from csd_emu.perfmodel.split.cut_seconds import simulate_cut
from csd_emu.perfmodel.split.split_problem import DeviceCost, SplitProblem
from firmware_agent.common.send_queue import SendQueue, TransferSettings
from host.policies.split import cut_table as table
from host.policies.split.choose_cut import decide
from tests.support.communication import Case, links, models, sendings
from tests.support.every_event import EqualPipes
from tests.support.examples import examples
from tests.support.placement import schedules, simulate_every_event, situations


def in_kinds(situation: SplitProblem, kinds: Sequence[int], links_alike: bool, wide: bool) -> SplitProblem:
    """The same with drives of these kinds, which may differ by what they compute alone, and be wider than the host."""
    remote = situation.remote
    drives = [remote[kind % len(remote)] for kind in kinds]
    link = remote[0].link_bytes_per_second, remote[0].link_latency_seconds
    if links_alike:
        drives = [replace(each, link_bytes_per_second=link[0], link_latency_seconds=link[1]) for each in drives]
    if wide:
        drives = [replace(each, link_bytes_per_second=1e10) for each in drives]
    local = [drive for drive in situation.drives if drive.local]
    named: list[DeviceCost] = [replace(each, device=f"csd-{place:02d}") for place, each in enumerate(drives)]
    return replace(situation, drives=(*named, *local))


many = st.builds(
    in_kinds,
    situations(schedules),
    st.lists(st.integers(0, 3), min_size=1, max_size=8),
    st.booleans(),
    st.booleans(),
)


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(100))
@given(many, st.booleans())
def test_parts_of_steps_take_what_every_event_takes(situation: SplitProblem, barrier: bool) -> None:
    situation, amounts = replace(situation, barrier=barrier), CutCosts(situation)
    for cut in range(1, len(situation.layers) + 1):
        if not math.isnan(amounts.crossing_bytes[cut]):
            expected = simulate_every_event(situation, cut)
            assert simulate_cut(CutCosts(situation), cut) == pytest.approx(expected, rel=1e-12, abs=1e-15)


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(40))
@given(many, st.sampled_from([0.0, 9.0]))
def test_decisions_are_those_that_every_event_would_make(situation: SplitProblem, heavy: float) -> None:
    decision = decide(situation, heavy=heavy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "simulate_cut", lambda amounts, cut: simulate_every_event(amounts.situation, cut))
        expected = decide(situation, heavy=heavy)
    assert decision.layer == expected.layer
    assert decision.step_seconds == pytest.approx(expected.step_seconds, rel=1e-12)
    assert decision.unmoved_seconds == pytest.approx(expected.unmoved_seconds, rel=1e-12)
    for row, other in zip(decision.rows, expected.rows, strict=True):
        assert row.step_seconds == (
            None if other.step_seconds is None else pytest.approx(other.step_seconds, rel=1e-12)
        )


Offers = list[tuple[float, int, int, int]]


def carry_every_event(
    offers: Sequence[Offers], own: Sequence[OwnLink], link: SharedLink, sending: TransferSettings
) -> list[tuple[float, int, int, int]]:
    """What arrives when, with the real send queue in front of pipes that share the link."""
    pipes, queues = EqualPipes(own, link), [SendQueue(sending) for _ in offers]
    coming = [(offer[0], drive, *offer[1:]) for drive, each in enumerate(offers) for offer in each]
    coming.sort(key=itemgetter(0))
    known: list[tuple[float, int, int]] = []
    arrived = []
    while (now := min([pipes.next_seconds(), *(each[0] for each in (*coming[:1], *sorted(known)[:1]))])) < math.inf:
        for drive, piece in pipes.advance(now):
            arrived.append((now, drive, piece.order, piece.size_bytes))
            known.append((now + link.latency_seconds + own[drive].latency_seconds, drive, piece.size_bytes))
        for each in [each for each in known if each[0] <= now]:
            known.remove(each)
            queues[each[1]].acknowledge(each[2])
        while coming and coming[0][0] <= now:
            _, drive, order, start, end = coming.pop(0)
            queues[drive].offer(0, order, str(order), start, end)
        for drive, queue in enumerate(queues):
            while (next_piece := queue.next()) is not None:
                pipes.put(drive, next_piece, now)
    return arrived


@st.composite
def group_offers(draw: st.DrawFn) -> Offers:
    """Tensors in ranges that follow each other, offered as time goes on."""
    ranges = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5000)), max_size=12))
    # Never just when a piece has been read: rounding would decide which comes first.
    counts = st.lists(st.integers(0, 1000), min_size=len(ranges), max_size=len(ranges))
    moments = [math.sqrt(count**2 + 0.37) / 97 for count in sorted(draw(counts))]
    offers, begun = [], dict.fromkeys(range(6), 0)
    for moment, (order, size) in zip(moments, ranges, strict=True):
        offers.append((moment, order, begun[order], begun[order] + size))
        begun[order] += size
    return offers


@settings(deadline=None, max_examples=examples(200))
@given(
    st.lists(
        st.tuples(group_offers(), st.integers(1, 3), st.floats(100, 1e5), st.floats(0, 0.1)), min_size=1, max_size=4
    ),
    st.builds(SharedLink, st.floats(500, 1e5), st.floats(0, 0.1), st.floats(0, 0.1)),
    st.just(TransferSettings())
    | st.builds(TransferSettings, st.just("priority"), st.integers(100, 3000), st.integers(1, 9000)),
)
def test_a_flow_is_what_queues_and_pipes_do(
    groups: list[tuple[Offers, int, float, float]], link: SharedLink, sending: TransferSettings
) -> None:
    offers, weights = [each for each, *_ in groups], [weight for _, weight, *_ in groups]
    own = [OwnLink(rate, latency) for *_, rate, latency in groups]
    places = [group for group, weight in enumerate(weights) for _ in range(weight)]  # of each drive
    everything = carry_every_event([offers[group] for group in places], [own[group] for group in places], link, sending)
    leaders = {places.index(group): group for group in range(len(groups))}
    expected = [(each[0], leaders[each[1]], *each[2:]) for each in everything if each[1] in leaders]
    expected.sort(key=lambda each: each[1])
    flow = LinkFlow(weights, own, link, sending).carry(offers)
    assert flow == sorted(flow)
    carried = sorted(((each[0], *each[3:]) for each in flow), key=lambda each: each[1])
    assert [each[1:] for each in carried] == [each[1:] for each in expected]
    assert [each[0] for each in carried] == pytest.approx([each[0] for each in expected], rel=1e-9)


@settings(deadline=None, max_examples=examples(60))
@given(
    models(),
    links,
    sendings,
    st.lists(st.tuples(st.floats(0.5, 3), st.floats(0, 0.1), st.integers(1, 20_000)), min_size=1, max_size=3),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_steps_are_those_of_every_event(
    costs: Costs,
    link: SharedLink,
    sending: TransferSettings,
    each: list[tuple[float, float, int]],
    cut: bool,
    trains: bool,
    barrier: bool,
) -> None:
    case = Case(
        [read_first(scale_compute(costs, factor)) for factor, *_ in each],
        link,
        sending,
        BlockStepping(1000, 1e6, barrier),
        [OwnLink(1e6, latency) for _, latency, _ in each],
        [(size, 2 * size) for *_, size in each] if cut else (),
        read_first(scale_compute(costs, 2.0)) if trains else None,
        0.01 if cut else 0.0,
    )
    run, events = case.steady(), case.every_event()
    assert [run.step() for _ in range(4)] == pytest.approx([events.step() for _ in range(4)], rel=1e-9, abs=1e-12)
    assert settle(case.steady()) == pytest.approx(settle(case.every_event()), rel=1e-6, abs=1e-12)


def read_first(costs: Costs) -> Costs:
    """With a layer without tensors, as reading is: only then does a step begin as the one before ends."""
    return (LayerCost("read", (), 0.01, 0.0), *costs)
