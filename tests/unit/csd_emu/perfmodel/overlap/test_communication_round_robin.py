"""A link that serves its drives in turns: what it carries, when, and what comes of it for a step."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.overlap.carried import Carried, Pipes
from csd_emu.perfmodel.overlap.event_simulation import PULL, PUSH
from csd_emu.perfmodel.overlap.layer_work import Costs, LayerCost, TensorCost, ideal_step_seconds
from csd_emu.perfmodel.overlap.pipes import LonePipe, make_pipes
from csd_emu.perfmodel.overlap.round_robin import RoundRobinPipes
from csd_emu.perfmodel.overlap.simulated_link import OwnLink, SharedLink
from csd_emu.perfmodel.overlap.simulated_step import simulate, steady_step_seconds
from csd_emu.perfmodel.overlap.stepped_ranges import MOST_BLOCKS, tensor_block_bytes
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.send_queue import Piece, TransferSettings
from tests.support.communication import blocks, links, models, sendings

sizes = st.lists(st.integers(1, 5000), min_size=1, max_size=6)
turns = st.integers(1, 3000)


def piece(number: int, size: int) -> Piece:
    return Piece(0, number, 0, size, f"t{number}")


def carry(pipes: Pipes, each: list[list[int]]) -> list[Carried]:
    """Put all pieces on at once, and wait for the last one."""
    for group, pieces in enumerate(each):
        for number, size in enumerate(pieces):
            pipes.put(group, piece(number, size), 0.0)
    arrived: list[Carried] = []
    while len(arrived) < sum(map(len, each)):
        arrived += pipes.advance(pipes.next_seconds)
    assert pipes.next_seconds == float("inf")
    return arrived


@given(links, sizes, turns)
def test_with_one_drive_turns_change_nothing(link: SharedLink, pieces: list[int], turn: int) -> None:
    alone = carry(LonePipe(1, OwnLink(), link), [pieces])
    served = carry(RoundRobinPipes([OwnLink()], replace(link, turn_bytes=turn)), [pieces])
    assert [each.piece for each in served] == [each.piece for each in alone]
    assert [each.arrival_seconds for each in served] == pytest.approx([each.arrival_seconds for each in alone])


@given(links, st.lists(sizes, min_size=2, max_size=4), turns)
def test_each_drives_pieces_arrive_in_order_and_no_sooner_than_all_bytes_take(
    link: SharedLink, each: list[list[int]], turn: int
) -> None:
    served = carry(RoundRobinPipes([OwnLink()] * len(each), replace(link, turn_bytes=turn)), each)
    for group, pieces in enumerate(each):
        own = [carried for carried in served if carried.group == group]
        assert [carried.piece.size_bytes for carried in own] == pieces
        assert all(a.arrival_seconds <= b.arrival_seconds for a, b in pairwise(own))
        least = sum(pieces) / min(link.device_bytes_per_second, link.free_bytes_per_second)
        assert own[-1].arrival_seconds >= (least + link.latency_seconds) * (1 - 1e-9)
    whole = sum(map(sum, each)) / link.free_bytes_per_second
    assert max(carried.arrival_seconds for carried in served) >= whole * (1 - 1e-9)


def test_equal_slices_end_a_turn_apart() -> None:
    link = SharedLink(100.0, 0.0, turn_bytes=10)
    served = carry(RoundRobinPipes([OwnLink()] * 3, link), [[40]] * 3)
    assert [(each.group, each.arrival_seconds) for each in served] == [
        (0, pytest.approx(1.0)),
        (1, pytest.approx(1.1)),
        (2, pytest.approx(1.2)),
    ]


def test_who_has_nothing_to_send_is_passed_over() -> None:
    served = carry(RoundRobinPipes([OwnLink()] * 3, SharedLink(100.0, 0.0, turn_bytes=10)), [[40], [], [10]])
    assert [(each.group, each.arrival_seconds) for each in served] == [(2, pytest.approx(0.2)), (0, pytest.approx(0.5))]


def test_a_drives_own_narrow_side_gives_its_turns_to_the_others() -> None:
    narrow = RoundRobinPipes([OwnLink(10.0), OwnLink()], SharedLink(100.0, 0.0, turn_bytes=10))
    served = {each.group: each.arrival_seconds for each in carry(narrow, [[40], [60]])}
    assert served[0] == pytest.approx(4.0, rel=0.1)
    assert served[1] == pytest.approx(0.7, abs=0.11)


def test_a_change_of_the_link_holds_from_the_next_turn_on() -> None:
    pipes = RoundRobinPipes([OwnLink()], SharedLink(100.0, 0.0, turn_bytes=10))
    pipes.put(0, piece(0, 20), 0.0)
    pipes.advance(pipes.next_seconds)  # the first turn begins
    pipes.change(SharedLink(10.0, 0.5), 0.05)
    arrived: list[Carried] = []
    while not arrived:
        arrived += pipes.advance(pipes.next_seconds)
    assert arrived[0].arrival_seconds == pytest.approx(0.1 + 1.0 + 0.5)


def test_links_say_which_pipes_they_have() -> None:
    assert isinstance(make_pipes([1, 1], [OwnLink()] * 2, SharedLink(1.0, 0.0, turn_bytes=1)), RoundRobinPipes)
    assert not isinstance(make_pipes([1, 1], [OwnLink()] * 2, SharedLink(1.0, 0.0)), RoundRobinPipes)
    with pytest.raises(ConfigurationError, match="turns of -1 bytes"):
        SharedLink(1.0, 0.0, turn_bytes=-1)


@given(models(), links, sendings, blocks, st.integers(1, 3), st.integers(64, 4096))
def test_steps_over_turns_move_every_byte_and_beat_no_bound(
    costs: Costs, link: SharedLink, sending: TransferSettings, block: int, drives: int, turn: int
) -> None:
    served = replace(link, turn_bytes=turn)
    run = simulate([costs] * drives, served, sending, 3, block_bytes=block, record=True)
    assert run.groups == tuple(range(drives))
    size = sum(layer.size_bytes for layer in costs)
    for direction in (PUSH, PULL):
        for group in range(drives):
            sent = [t.carried.piece for t in run.transfers if t.direction == direction and t.carried.group == group]
            assert sum(each.size_bytes for each in sent if each.exchange < 2) == 2 * size
    step = steady_step_seconds([costs] * drives, served, sending, block_bytes=block)
    assert step >= ideal_step_seconds([costs] * drives, link.free_bytes_per_second) * (1 - 1e-9)


def test_like_drives_that_are_served_in_turns_send_different_slices_and_pay_for_it() -> None:
    """Each has half a block of an early layer when the next one becomes ready."""
    costs = tuple(LayerCost(f"l{i}", (TensorCost(f"w{i}", 2000),), 0.02, 0.2) for i in range(8))
    even, served = SharedLink(10_000.0, 0.0), SharedLink(10_000.0, 0.0, turn_bytes=500)
    large, small = TransferSettings("priority", 1000, 2000), TransferSettings("priority", 250, 500)
    lost = {
        sending.slice_bytes: steady_step_seconds([costs] * 3, served, sending, block_bytes=sending.slice_bytes or 1)
        / steady_step_seconds([costs] * 3, even, sending, block_bytes=sending.slice_bytes or 1)
        for sending in (large, small)
    }
    assert lost[1000] > 1.03
    assert lost[250] < lost[1000]


@given(st.integers(0, 1 << 34), st.integers(1, 1 << 20))
def test_blocks_are_few_and_no_larger_than_that_takes(size: int, least: int) -> None:
    block = tensor_block_bytes(size, least)
    assert block % least == 0
    assert -(-size // block) <= MOST_BLOCKS
    assert block == least or -(-size // (block // 2)) > MOST_BLOCKS
