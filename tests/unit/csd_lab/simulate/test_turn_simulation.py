"""A link that serves its drives in turns: what it carries, when, and what comes of it for a step."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.overlap.layer_work import Costs, LayerCost, TensorCost
from csd_emu.perfmodel.overlap.simulated_link import SharedLink
from csd_emu.perfmodel.overlap.stepped_ranges import MOST_BLOCKS, tensor_block_bytes
from csd_lab.simulate.turn_simulation import RoundRobinPipes, TurnLink, TurnSimulation, ideal_step_seconds, step_seconds
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.send_queue import Piece, TransferSettings
from tests.support.communication import blocks, links, models, sendings

Arrived = list[tuple[int, int, float]]

sizes = st.lists(st.integers(1, 5000), min_size=1, max_size=6)
turns = st.integers(1, 3000)


def in_turns(link: SharedLink, turn_bytes: int) -> TurnLink:
    return TurnLink(**asdict(link), turn_bytes=turn_bytes)


def piece(number: int, size: int) -> Piece:
    return Piece(0, number, 0, size, f"t{number}")


def carry(pipes: RoundRobinPipes, each: list[list[int]]) -> Arrived:
    """Put all pieces on at once, and wait for the last one; return (drive, bytes, seconds) as they arrive."""
    for drive, pieces in enumerate(each):
        for number, size in enumerate(pieces):
            pipes.put(drive, piece(number, size), 0.0)
    arrived: Arrived = []
    while len(arrived) < sum(map(len, each)):
        now = pipes.next_seconds
        arrived += [(drive, piece.size_bytes, now) for drive, piece in pipes.advance(now)]
    assert pipes.next_seconds == float("inf")
    return arrived


@given(links, sizes, turns)
def test_with_one_drive_turns_change_nothing(link: SharedLink, pieces: list[int], turn: int) -> None:
    served = carry(RoundRobinPipes(1, in_turns(link, turn)), [pieces])
    ends = list(accumulate(link.slice_seconds + size / link.bytes_per_second for size in pieces))
    assert [size for _, size, _ in served] == pieces
    assert [seconds for *_, seconds in served] == pytest.approx([end + link.latency_seconds for end in ends])


@given(links, st.lists(sizes, min_size=2, max_size=4), turns)
def test_each_drives_pieces_arrive_in_order_and_no_sooner_than_all_bytes_take(
    link: SharedLink, each: list[list[int]], turn: int
) -> None:
    served = carry(RoundRobinPipes(len(each), in_turns(link, turn)), each)
    for drive, pieces in enumerate(each):
        own = [(size, seconds) for of, size, seconds in served if of == drive]
        assert [size for size, _ in own] == pieces
        assert all(a[1] <= b[1] for a, b in pairwise(own))
        least = sum(pieces) / link.bytes_per_second
        assert own[-1][1] >= (least + link.latency_seconds) * (1 - 1e-9)
    whole = sum(map(sum, each)) / link.bytes_per_second
    assert max(seconds for *_, seconds in served) >= whole * (1 - 1e-9)


def test_equal_slices_end_a_turn_apart() -> None:
    served = carry(RoundRobinPipes(3, TurnLink(100.0, 0.0, turn_bytes=10)), [[40]] * 3)
    assert [each[0] for each in served] == [0, 1, 2]
    assert [each[2] for each in served] == pytest.approx([1.0, 1.1, 1.2])


def test_who_has_nothing_to_send_is_passed_over() -> None:
    served = carry(RoundRobinPipes(3, TurnLink(100.0, 0.0, turn_bytes=10)), [[40], [], [10]])
    assert served == [(2, 10, pytest.approx(0.2)), (0, 40, pytest.approx(0.5))]


@given(models(), links, sendings, blocks, st.integers(1, 3), st.integers(64, 4096))
def test_steps_over_turns_beat_no_bound_and_are_the_same_again(
    costs: Costs, link: SharedLink, sending: TransferSettings, block: int, drives: int, turn: int
) -> None:
    served = in_turns(link, turn)
    step = step_seconds([costs] * drives, served, sending, block_bytes=block)
    assert step >= ideal_step_seconds([costs] * drives, link.bytes_per_second) * (1 - 1e-9)
    assert step == step_seconds([costs] * drives, served, sending, block_bytes=block)


@given(models(), links, blocks)
def test_whole_tensors_of_one_drive_take_what_equal_parts_take(costs: Costs, link: SharedLink, block: int) -> None:
    """Without credit nothing hangs on when a sender is told; and of one drive, turns are no turns."""
    served, sending = in_turns(link, 500), TransferSettings()
    even = step_seconds([costs], link, sending, block_bytes=block)
    # What is told goes through the pipe too, and may wait for bytes there, but no bytes wait for it.
    assert step_seconds([costs], served, sending, block_bytes=block) == pytest.approx(even, rel=1e-6)


def steps_of(run: TurnSimulation, steps: int) -> list[float]:
    return [run.step() for _ in range(steps)]


@given(models(), links, sendings, st.integers(1, 3))
def test_passes_that_are_never_late_are_as_without(
    costs: Costs, link: SharedLink, sending: TransferSettings, drives: int
) -> None:
    served = in_turns(link, 500)
    late, plain = (TurnSimulation([costs] * drives, served, sending, late=each) for each in (lambda: 0.0, None))
    assert steps_of(late, 4) == pytest.approx(steps_of(plain, 4))


@given(st.integers(0, 99), st.integers(1, 4))
def test_lateness_does_not_add_up(seed: int, layers: int) -> None:
    """Without a byte to wait for, whatever so many passes were late by: the last one ends no later than that."""
    costs = tuple(LayerCost(f"layer{n}", (), 0.5, 1.0) for n in range(layers))
    generator = np.random.default_rng(seed)
    link = TurnLink(1.0, 0.0, turn_bytes=1)
    run = TurnSimulation([costs] * 2, link, TransferSettings(), late=lambda: 0.1 * float(generator.random()))
    seconds = steps_of(run, 20)
    assert max(seconds) > min(seconds)
    assert 0 <= sum(seconds) - 20 * 1.5 * layers <= 0.1


def test_who_has_waited_is_not_due_before_he_has_begun() -> None:
    """Both passes end late, which counts once in each step: parameters are waited for, and come that much later."""
    link = TurnLink(1000.0, 0.25, slice_seconds=0.125, turn_bytes=500)
    costs = (LayerCost("only", (TensorCost("w", 500),), 0.5, 1.0),)
    run = TurnSimulation([costs], link, TransferSettings(), late=lambda: 0.0625)
    assert steps_of(run, 3) == pytest.approx([1.5 + 0.0625 + 2 * (0.125 + 0.5 + 0.25)] * 3)


def test_like_drives_that_are_served_in_turns_send_different_slices_and_pay_for_it() -> None:
    """Each has half a block of an early layer when the next one becomes ready."""
    costs = tuple(LayerCost(f"l{i}", (TensorCost(f"w{i}", 2000),), 0.02, 0.2) for i in range(8))
    even, served = SharedLink(10_000.0, 0.0), TurnLink(10_000.0, 0.0, turn_bytes=500)
    large, small = TransferSettings("priority", 1000, 2000), TransferSettings("priority", 250, 500)
    lost = {
        sending.slice_bytes: step_seconds([costs] * 3, served, sending, block_bytes=sending.slice_bytes or 1)
        / step_seconds([costs] * 3, even, sending, block_bytes=sending.slice_bytes or 1)
        for sending in (large, small)
    }
    assert lost[1000] > 1.03
    assert lost[250] < lost[1000]


def test_models_and_turns_that_cannot_be_are_refused() -> None:
    link = TurnLink(1.0, 0.0, turn_bytes=1)
    with pytest.raises(ConfigurationError, match="needs a drive"):
        step_seconds([], link, TransferSettings())
    with pytest.raises(ConfigurationError, match="turns of 0 bytes"):
        replace(link, turn_bytes=0)


@given(st.integers(0, 1 << 34), st.integers(1, 1 << 20))
def test_blocks_are_few_and_no_larger_than_that_takes(size: int, least: int) -> None:
    block = tensor_block_bytes(size, least)
    assert block % least == 0
    assert -(-size // block) <= MOST_BLOCKS
    assert block == least or -(-size // (block // 2)) > MOST_BLOCKS
