"""What cuts cost and which is chosen: laws over random situations, and what a run's own accounting says of them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.perfmodel.host_node import reduce_seconds
from csd_emu.perfmodel.overlap.layer_work import TensorCost
from csd_emu.perfmodel.overlap.overlapped_step import SLICE_SECONDS, OverlapComposer
from csd_emu.perfmodel.split.cut_costs import CutCosts
from csd_emu.perfmodel.split.cut_seconds import PATIENCE, barrier_seconds, bounds, find_best, patience_of, simulate_cut
from csd_emu.perfmodel.split.split_problem import (
    LABEL_BYTES,
    DeviceCost,
    DriveMemory,
    HostPlace,
    LayerSplitCost,
    SplitProblem,
)
from csd_emu.perfmodel.timeline import TAIL, Activity, Crossed, Link, compose, compose_cut
from csd_emu.util.node_names import HOST
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.layer_costs import LayerWork
from firmware_agent.common.send_queue import TransferSettings
from host.config.plugins.kinds import SPLIT_POLICY
from host.policies.split.choose_cut import HEAVY, decide, decide_for
from host.policies.split.cut_table import MARGIN
from tests.support.examples import examples
from tests.support.placement import schedules, situations

FLASH = 1e9


def possible(situation: SplitProblem) -> list[int]:
    crossing = CutCosts(situation).crossing_bytes
    return [cut for cut in range(1, len(situation.layers) + 1) if not math.isnan(crossing[cut])]


def activities(situation: SplitProblem, cut: int) -> tuple[list[Activity], Crossed, float]:
    """What the runs' own accounting is told of a step: per device, of what crosses, and of the sum at the end."""
    amounts, parts = CutCosts(situation), []
    remote = [drive.device for drive in situation.remote]
    up = dict(zip(remote, (amounts.up_bytes[cut] - amounts.push_bytes[cut]).round().astype(int).tolist(), strict=True))
    down = dict(
        zip(remote, (amounts.down_bytes[cut] - amounts.pull_bytes[cut]).round().astype(int).tolist(), strict=True)
    )
    for place, drive in enumerate(situation.drives):
        phases = {
            "forward": amounts.forward_seconds[place, cut],
            "backward": amounts.backward_seconds[place, cut],
            "encode": amounts.encode_seconds[place, cut],
        }
        far = not drive.local
        parts.append(
            Activity(
                device=drive.device,
                receive_bytes=int(amounts.pull_bytes[cut]) + down[drive.device] if far else 0,
                read_bytes=round(drive.read_seconds * FLASH),
                read_operations=0,
                phases={phase: float(took) for phase, took in phases.items()},
                send_bytes=int(amounts.push_bytes[cut]) + up[drive.device] if far else 0,
                flash_bytes_per_second=FLASH,
                flash_latency_seconds=0.0,
                link_bytes_per_second=drive.link_bytes_per_second,
                link_latency_seconds=drive.link_latency_seconds,
            )
        )
    tail = float(amounts.host_seconds[cut]) if cut < amounts.unmoved else 0.0
    stepping = reduce_seconds(int(amounts.push_bytes[-1] - amounts.push_bytes[cut]), 0)
    crossed = Crossed(up, down, tail, step_seconds=stepping)
    return parts, crossed, reduce_seconds(int(amounts.push_bytes[cut]), len(situation.drives))


@settings(deadline=None)
@given(situations())
def test_the_closed_form_is_what_runs_account(situation: SplitProblem) -> None:
    amounts = CutCosts(situation)
    predicted = barrier_seconds(amounts)
    for cut in possible(situation):
        parts, crossed, reduce = activities(situation, cut)
        whole = cut == amounts.unmoved
        composed = compose(parts, situation.link) if whole else compose_cut(parts, situation.link, crossed)
        assert predicted[cut] == pytest.approx(composed.seconds + reduce, rel=1e-6, abs=1e-8)
    others = set(range(len(predicted))) - set(possible(situation))
    assert all(math.isnan(predicted[cut]) for cut in others)


@settings(deadline=None, max_examples=examples(30))
@given(situations(schedules))
def test_no_schedule_beats_the_bound(situation: SplitProblem) -> None:
    lowest = bounds(CutCosts(situation))
    for cut in possible(situation):
        assert simulate_cut(CutCosts(situation), cut) >= lowest[cut] * (1 - 1e-9)


@settings(deadline=None, max_examples=examples(20))
@given(situations(schedules))
def test_the_choice_is_the_best_of_all_that_could_be_simulated(situation: SplitProblem) -> None:
    every = {cut: simulate_cut(CutCosts(situation), cut) for cut in possible(situation)}
    decision = decide(situation)
    assert decision.step_seconds == pytest.approx(every[decision.drive_layers])
    assert every[decision.drive_layers] <= (1 + MARGIN) * min(every.values()) * (1 + 1e-9)
    if decision.layer is not None:
        assert every[decision.drive_layers] == pytest.approx(min(every.values()))


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(20))
@given(situations(schedules, local=False))
def test_a_run_composes_what_was_predicted(situation: SplitProblem) -> None:
    situation = replace(situation, slice_seconds=SLICE_SECONDS.value)
    sizes = {tensor.name: tensor.size_bytes for layer in situation.layers for tensor in layer.tensors}
    for cut in possible(situation):
        parts, crossed, reduce = activities(situation, cut)
        kept = situation.layers[:cut]
        works = tuple(
            LayerWork(each.name, {t.name: t.size_bytes for t in each.tensors}, *operations(each)) for each in kept
        )
        front = {tensor.name: sizes[tensor.name] for layer in kept for tensor in layer.tensors}
        composer = OverlapComposer(works, front, situation.block_bytes)
        own = crossed if cut < len(situation.layers) else None
        composed = composer.compose(parts, situation.link, situation.sending, reduce, own)
        # Encoding activations, which comes before them, is counted with the gradients by a stopwatch.
        assert composed.seconds == pytest.approx(simulate_cut(CutCosts(situation), cut), rel=0.2)
        tails = [span for span in composed.spans if span.phase == TAIL]
        assert len(tails) == (own is not None)
        assert all(span.device == HOST and span.seconds == pytest.approx(crossed.tail_seconds) for span in tails)
        backward = [span for span in composed.spans if span.phase == "backward"]
        assert all(span.start_seconds >= tails[0].end_seconds - 1e-9 for span in backward if tails)


def operations(layer: LayerSplitCost) -> tuple[float, float]:
    return layer.forward_operations, layer.backward_operations


@settings(deadline=None, max_examples=examples(40))
@given(situations(st.none() | schedules))
def test_a_choice_is_never_worse_than_nothing_moved(situation: SplitProblem) -> None:
    for decision in (decide(situation, heavy=HEAVY), decide(situation)):
        assert decision.unmoved_seconds is not None
        assert decision.step_seconds <= decision.unmoved_seconds
        assert decision.rows[0].layer is None
        assert decision.row.layer == decision.layer
        assert not decision.row.refused
        assert decision.layer is None or decision.gain > 1 + MARGIN


@settings(deadline=None)
@given(situations(), st.floats(1, 100), st.sampled_from([0.0, HEAVY]))
def test_more_bandwidth_never_makes_the_best_step_longer(situation: SplitProblem, times: float, heavy: float) -> None:
    link = replace(situation.link, bytes_per_second=situation.link.bytes_per_second * times)
    before, after = decide(situation, heavy=heavy), decide(replace(situation, link=link), heavy=heavy)
    assert after.step_seconds <= before.step_seconds * (1 + MARGIN) * (1 + 1e-9)


def with_free_wire(situation: SplitProblem, times: float) -> SplitProblem:
    """A link that costs nothing, drives that compute for long, a host that takes `times` as long as all of them."""
    drives = tuple(
        replace(
            each,
            forward_seconds=1e3 * each.forward_seconds,
            backward_seconds=1e3 * each.backward_seconds,
            encode_seconds=0.0,
            link_bytes_per_second=1e15,
            link_latency_seconds=0.0,
            parts_factor=1.0,
        )
        for each in situation.drives
    )
    host = HostPlace(
        times * sum(each.forward_seconds for each in drives), times * sum(each.backward_seconds for each in drives)
    )
    return replace(situation, drives=drives, host=host, link=Link(1e15, 0.0), slice_seconds=0.0)


@settings(deadline=None, max_examples=examples(40))
@given(situations(st.none() | schedules, local=False), st.floats(1.0, 4.0))
def test_nothing_moves_where_compute_dominates_and_the_host_is_no_faster(
    situation: SplitProblem, slower: float
) -> None:
    assert decide(with_free_wire(situation, slower)).layer is None


@settings(deadline=None, max_examples=examples(40))
@given(situations(st.none() | schedules, local=False), st.floats(0.0, 4.0), st.floats(1e-9, 20.0))
def test_no_rule_moves_anything_for_the_hosts_speed_alone(situation: SplitProblem, times: float, heavy: float) -> None:
    assert decide(with_free_wire(situation, times), heavy=heavy).layer is None


@settings(deadline=None, max_examples=examples(40))
@given(situations(st.none() | schedules), st.floats(1e-9, 5.0))
def test_what_is_chosen_relieves_the_wire_and_is_the_best_that_does(situation: SplitProblem, heavy: float) -> None:
    decision = decide(situation, heavy=heavy)
    assert decision.row.relieves
    assert all(row.heavy for row in decision.rows if row.relieves)
    known = [row.step_seconds for row in decision.rows if row.relieves and row.step_seconds is not None]
    assert decision.step_seconds <= (1 + MARGIN) * min(known)


@given(situations())
def test_traffic_is_the_formula_and_a_label_for_each_record(situation: SplitProblem) -> None:
    amounts = CutCosts(situation)
    for cut in possible(situation):
        for place, drive in enumerate(situation.remote):
            own = amounts.up_bytes[cut, place] + amounts.down_bytes[cut, place]
            kept = situation.layers[:cut]
            parameters = sum(layer.push_bytes for layer in kept)
            labels = LABEL_BYTES * drive.batch_size if cut < amounts.unmoved else 0
            untrained = sum(layer.pull_only_bytes for layer in kept)
            formula = 2 * parameters + 2 * drive.batch_size * amounts.crossing_bytes[cut]
            assert own == pytest.approx(formula + labels + untrained)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=12), st.data())
def test_what_is_left_out_of_a_search_is_no_better(truth: list[float], data: st.DataObject) -> None:
    share = data.draw(st.lists(st.floats(0.0, 1.0), min_size=len(truth), max_size=len(truth)))
    lowest = np.array(truth) * share
    asked: list[int] = []

    def seconds(cut: int) -> float:
        asked.append(cut)
        return truth[cut]

    found = find_best(seconds, lowest, range(len(truth)), {})
    assert min(found.values()) == min(truth)
    assert len(asked) == len(set(asked)) == len(found)


def test_a_search_with_patience_ends_after_so_many_that_win_nothing() -> None:
    truth = [5.0, 4.0, 6.0, 6.0, 3.0, 6.0, 6.0, 6.0, 1.0]
    lowest = np.linspace(0.0, 0.5, len(truth))
    assert list(find_best(truth.__getitem__, lowest, range(len(truth)), {}, 3)) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert list(find_best(truth.__getitem__, lowest, range(len(truth)), {}, 2)) == [0, 1, 2, 3]
    assert list(find_best(truth.__getitem__, lowest, range(len(truth)), {})) == list(range(len(truth)))


def test_drives_that_differ_by_name_alone_are_alike() -> None:
    assert patience_of(PLAIN) is None
    other = replace(PLAIN.drives[0], batch_size=1)
    assert patience_of(replace(PLAIN, drives=(*PLAIN.drives, replace(other, local=True)))) is None
    assert patience_of(replace(PLAIN, drives=(*PLAIN.drives, other))) == PATIENCE


def test_the_bound_holds_where_only_early_cuts_fit_at_once() -> None:
    """A late cut has its records computed in parts, which takes longer; an early one has not."""
    memory = DriveMemory(500e6, 400e6, 1, 600e6)
    layers = tuple(
        LayerSplitCost(f"l{n}", (TensorCost(f"l{n}.weight", 30_000_000),), 1.0, 1.0, 100.0, 4_000 if n else None)
        for n in range(4)
    )
    drives = tuple(replace(each, memory=memory, parts_factor=20.0) for each in PLAIN.drives)
    sending = TransferSettings("priority", 1 << 20, 4 << 20)
    situation = replace(PLAIN, layers=layers, drives=drives, sending=sending, cut_overlaps=True, link=Link(2e7, 0.0))
    assert len(np.unique(CutCosts(situation).factors)) == 2
    lowest = bounds(CutCosts(situation))
    for cut in range(1, 5):
        assert simulate_cut(CutCosts(situation), cut) >= lowest[cut] * (1 - 1e-9)


PLAIN = SplitProblem(
    layers=(
        LayerSplitCost(
            "conv", (TensorCost("conv.weight", 1_000_000),), 98.0, 98.0, 900.0, None, reason="it is the first"
        ),
        LayerSplitCost("mix", (), 1.0, 1.0, 800.0, None, reason="the tensor conv.weight is used on both sides of it"),
        LayerSplitCost("classifier.0", (TensorCost("classifier.0.weight", 90_000_000),), 1.0, 1.0, 200.0, 4_000),
    ),
    drives=tuple(DeviceCost(f"csd-{n:02d}", 32, 1.0, 2.0, 0.1, 0.0, 5e8, 5e-5) for n in range(3)),
    host=HostPlace(0.2, 0.4),
    link=Link(1e7, 0.0),
)


def test_a_heavy_layer_moves_behind_a_slow_link_and_stays_behind_a_fast_one() -> None:
    assert decide(PLAIN, heavy=HEAVY).layer == "classifier.0"
    drives = tuple(replace(each, link_bytes_per_second=1e12, encode_seconds=0.0) for each in PLAIN.drives)
    assert (
        decide(replace(PLAIN, link=Link(1e12, 0.0), drives=drives, host=HostPlace(3.0, 6.0)), heavy=HEAVY).layer is None
    )


def test_a_layer_with_much_arithmetic_does_not_relieve_the_wire() -> None:
    busy = replace(PLAIN.layers[2], forward_operations=50.0, backward_operations=50.0)
    situation = replace(PLAIN, layers=(*PLAIN.layers[:2], busy))
    assert 0 < CutCosts(situation).heaviness[2] < HEAVY
    decision = decide(situation, heavy=HEAVY)
    assert decision.layer is None
    assert "classifier.0" in decision.notes[0]
    asked = decide_for(situation, "classifier.0")
    assert asked.layer == "classifier.0"
    assert decide(situation).layer == "classifier.0"


@settings(deadline=None, max_examples=examples(30))
@given(situations(st.none() | schedules))
def test_a_faster_cut_that_the_rule_declines_is_named_and_no_reason_denies_it(situation: SplitProblem) -> None:
    decision, free = decide(situation, heavy=HEAVY), decide(situation)
    faster = decision.step_seconds > (1 + MARGIN) * free.step_seconds
    named = [note for note in decision.notes if note.startswith("a cut before")]
    assert len(named) == faster
    if faster:
        assert repr(free.layer)[1:-1] in named[0]
        assert f"{free.step_seconds:.4g} s a step" in named[0]
    if decision.layer is None and free.layer is not None:
        assert "that relieves the wire by late, heavy layers" in decision.reason


def test_a_faster_cut_is_named_where_the_exchange_overlaps_computing_too() -> None:
    busy = replace(PLAIN.layers[2], forward_operations=50.0, backward_operations=50.0)
    layers = *PLAIN.layers[:2], busy
    overlapped = replace(
        PLAIN, layers=layers, sending=TransferSettings("priority", 1 << 20, 4 << 20), cut_overlaps=True
    )
    decision, whole = decide(overlapped, heavy=HEAVY), decide_for(overlapped, "classifier.0")
    assert decision.layer is None
    assert decision.step_seconds > 2 * whole.step_seconds
    assert f"a cut before classifier.0 would take {whole.step_seconds:.4g} s a step" in decision.notes[0]
    assert decision.reason == "no cut that relieves the wire by late, heavy layers makes a step shorter"


def test_a_heavy_layer_that_would_move_for_the_hosts_speed_alone_stays() -> None:
    busy = replace(PLAIN.layers[2], forward_operations=8.0, backward_operations=8.0)
    # So long that what the host's summing takes, which a cut spares too, is little.
    drives = tuple(
        replace(each, forward_seconds=100.0, backward_seconds=200.0, link_bytes_per_second=1e12)
        for each in PLAIN.drives
    )
    layers = *PLAIN.layers[:2], busy
    situation = replace(PLAIN, layers=layers, drives=drives, host=HostPlace(20.0, 40.0), link=Link(1e12, 0.0))
    assert CutCosts(situation).heaviness[2] > HEAVY
    decision = decide(situation, heavy=HEAVY)
    assert decision.layer is None
    assert [row.relieves for row in decision.rows if row.layer == "classifier.0"] == [False]
    assert "classifier.0" in decision.notes[0]
    assert decide(situation).layer == "classifier.0"
    slow = decide(replace(situation, link=Link(1e7, 0.0)), heavy=HEAVY)
    assert slow.layer == "classifier.0"
    assert slow.row.relieves


def test_a_model_too_large_for_a_drive_is_cut() -> None:
    memory = DriveMemory(500e6, 600e6, 1, 600e6)
    tight = replace(PLAIN, link=Link(1e12, 0.0), drives=tuple(replace(each, memory=memory) for each in PLAIN.drives))
    decision = decide(tight, heavy=HEAVY)
    assert decision.layer == "classifier.0"
    assert decision.unmoved_seconds is None
    assert decision.gain is None
    assert "csd-00 needs 600.0 MB" in decision.reason
    with pytest.raises(ConfigurationError, match=r"none: csd-00 needs 600\.0 MB of memory"):
        decide_for(tight, None)


def test_a_light_cut_is_made_if_nothing_else_fits() -> None:
    """A drive that holds next to nothing gives away arithmetic too."""
    busy = replace(PLAIN.layers[2], forward_operations=50.0, backward_operations=50.0)
    memory = DriveMemory(500e6, 600e6, 1, 600e6)
    drives = tuple(replace(each, memory=memory) for each in PLAIN.drives)
    decision = decide(replace(PLAIN, layers=(*PLAIN.layers[:2], busy), drives=drives), heavy=HEAVY)
    assert decision.layer == "classifier.0"
    assert any(note.startswith("34% of the computing moves to the host") for note in decision.notes)


@settings(deadline=None, max_examples=examples(40))
@given(situations(st.none() | schedules), st.floats(0.0, 1.0), st.sampled_from([0.0, HEAVY]))
def test_the_hosts_part_is_bounded_and_the_best_of_those_within_is_taken(
    situation: SplitProblem, share: float, heavy: float
) -> None:
    bounded = decide(replace(situation, max_host_share=share), heavy=heavy)
    assert bounded.row.moved_compute <= share
    within = [row for row in bounded.rows if not row.refused]
    assert all(row.moved_compute <= share for row in within)
    free = decide(situation, heavy=heavy)
    assert bounded.step_seconds >= free.step_seconds * (1 - 1e-9) / (1 + MARGIN)
    if free.row.moved_compute <= share and heavy == 0 and situation.sending is None:
        assert bounded.drive_layers == free.drive_layers
    for row in bounded.rows:
        if row.layer is not None and row.moved_compute > share and "cannot be cut" not in row.refused:
            assert "max_host_share" in row.refused


def test_a_bound_that_leaves_no_cut_that_fits_is_an_error_that_names_it() -> None:
    memory = DriveMemory(500e6, 600e6, 1, 600e6)
    tight = replace(PLAIN, drives=tuple(replace(each, memory=memory) for each in PLAIN.drives))
    assert decide(replace(tight, max_host_share=0.02)).layer == "classifier.0"
    with pytest.raises(ConfigurationError, match=r"no cut fits.*1\.0% of the computing, above max_host_share"):
        decide(replace(tight, max_host_share=0.005))


def test_a_decision_says_that_its_layers_were_never_measured() -> None:
    reason = "the calibration table has no layers"
    guessed = replace(PLAIN, drives=tuple(replace(each, layer_reason=reason) for each in PLAIN.drives))
    assert [note for note in decide(guessed).notes if "by arithmetic (FLOPs)" in note] == [
        f"seconds are shared out over the layers by arithmetic (FLOPs), which can be far off: {reason}"
    ]
    assert not any("by arithmetic" in note for note in decide(PLAIN).notes)


@pytest.mark.parametrize(("policy", "heavy"), [("auto", 0.0), ("relieve_wire", HEAVY)])
@settings(deadline=None, max_examples=examples(20))
@given(situation=situations(st.none() | schedules))
def test_policies_are_known_by_their_names(policy: str, heavy: float, situation: SplitProblem) -> None:
    assert SPLIT_POLICY.load(policy)().decide(situation) == decide(situation, heavy=heavy)


def test_what_does_not_fit_anywhere_is_an_error_that_says_what_is_short() -> None:
    memory = DriveMemory(100e6, 600e6, 1, 600e6)
    drives = tuple(replace(each, memory=memory) for each in PLAIN.drives)
    with pytest.raises(ConfigurationError, match=r"no cut fits.*600\.0 MB.*before 'classifier.0'.*420\.0 MB"):
        decide(replace(PLAIN, drives=drives), heavy=HEAVY)


def test_a_host_without_room_has_no_part() -> None:
    small = replace(PLAIN, host=replace(PLAIN.host, memory_bytes=1e8))
    assert decide(small, heavy=HEAVY).layer is None
    with pytest.raises(ConfigurationError, match=r"classifier.0: the host needs 450\.1 MB of memory for 96 records"):
        decide_for(small, "classifier.0")


def test_memory_that_holds_a_batch_in_parts_costs_what_parts_cost() -> None:
    memory = DriveMemory(500e6, 400e6, 1, 600e6)
    drives = tuple(replace(each, memory=memory, parts_factor=1.5) for each in PLAIN.drives)
    amounts, plain = CutCosts(replace(PLAIN, drives=drives)), CutCosts(PLAIN)
    assert amounts.forward_seconds[0, 3] == pytest.approx(1.5 * plain.forward_seconds[0, 3])
    assert amounts.forward_seconds[0, 2] == pytest.approx(plain.forward_seconds[0, 2])


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ("clasifier.0", "no layer 'clasifier.0'; nearest: 'classifier.0'"),
        ("conv", "'conv' is the model's first layer"),
        ("mix", "cannot be cut there: the tensor conv.weight is used on both sides of it"),
        ("", "no layer ''"),
    ],
)
def test_a_layer_that_cannot_be_is_refused_by_name(layer: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        decide_for(PLAIN, layer)


def test_a_cut_that_is_asked_for_is_made_even_if_it_is_slower() -> None:
    fast = replace(PLAIN, link=Link(1e12, 0.0), host=HostPlace(500.0, 500.0))
    decision = decide_for(fast, "classifier.0")
    assert decision.layer == "classifier.0"
    assert decision.gain is not None
    assert decision.gain < 1
    assert [note for note in decision.notes if "a cut before" in note] == []
    assert decide_for(fast, None).layer is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": ()}, "without a layer"),
        ({"drives": ()}, "a drive must take part"),
        ({"drives": (replace(PLAIN.drives[0], local=True),)}, "a drive must take part"),
        ({"link": Link(0.0, 0.0)}, "bandwidth"),
        ({"max_host_share": 1.5}, "max_host_share: 1.5 is no share"),
        ({"max_host_share": math.nan}, "max_host_share: nan is no share"),
        ({"host": HostPlace(1.0, 1.0, None, ((1.0,), (1.0,)))}, "1 shares for 3 layers"),
    ],
)
def test_a_situation_that_cannot_be_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        replace(PLAIN, **change)


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_numbers_that_are_none_are_refused(wrong: float) -> None:
    with pytest.raises(ConfigurationError):
        replace(PLAIN.layers[0], tail_bytes=wrong)
    with pytest.raises(ConfigurationError):
        replace(PLAIN.drives[0], forward_seconds=wrong)
    with pytest.raises(ConfigurationError):
        replace(PLAIN.host, backward_seconds=wrong)
    with pytest.raises(ConfigurationError):
        replace(PLAIN.host, memory_bytes=wrong)
    with pytest.raises(ConfigurationError):
        DriveMemory(1.0, wrong, 1, 1.0)


def test_a_cut_that_cannot_be_is_not_simulated() -> None:
    with pytest.raises(ConfigurationError, match="cannot be simulated"):
        simulate_cut(CutCosts(PLAIN), 2)
