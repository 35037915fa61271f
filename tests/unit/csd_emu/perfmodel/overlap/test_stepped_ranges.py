"""Tensors stepped block by block: bit for bit what torch does with whole ones, and checkpoints that know no blocks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.overlap.stepped_ranges import tensor_block_bytes
from firmware_agent.common.errors import CheckpointError
from firmware_agent.common.frames.frame_fields import TensorSpec
from firmware_agent.common.slices import Array
from host.config.sync_section import OptimiserSection
from host.training.host_optimiser import HostOptimiser
from host.training.tensor_ranges import (
    BLOCK_BYTES,
    Cells,
    Release,
    TensorRange,
    cut_blocks,
    item_blocks,
    joined,
    overlapped,
)

ITEMS = BLOCK_BYTES // 4
SHAPES: dict[str, tuple[int, ...]] = {"large": (2, ITEMS + 9), "small": (5,), "even": (ITEMS,), "scalar": ()}
OPTIMISERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("SGD", {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    ("Adam", {"amsgrad": True}),
    ("AdamW", {}),
    ("RMSprop", {"momentum": 0.5, "centered": True}),
    ("Adagrad", {"lr_decay": 0.1}),
    ("Adadelta", {}),
    ("Adamax", {}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("ASGD", {}),
    ("Rprop", {}),
]


def arrays(seed: int) -> dict[str, Array]:
    generator = np.random.default_rng(seed)
    return {name: np.asarray(generator.standard_normal(shape), np.float32) for name, shape in SHAPES.items()}


def made(weights: dict[str, Array], name: str, arguments: dict[str, Any]) -> HostOptimiser:
    return HostOptimiser(weights, OptimiserSection(name=name, arguments=arguments), 0.01)


def step_by_blocks(optimiser: HostOptimiser, steps: range, leave_out: Sequence[TensorRange] = ()) -> None:
    """Take steps, the blocks of each in an order of chance; in every second step neighbours together."""
    specs = [TensorSpec(name, "<f4", shape) for name, shape in SHAPES.items()]
    for step in steps:
        gradients = arrays(100 + step)
        blocks = [b for each in cut_blocks(specs, optimiser.block_bytes).values() for b in each if b not in leave_out]
        blocks = joined(blocks) if step % 2 else blocks
        np.random.default_rng(step).shuffle(blocks)  # type: ignore[arg-type]
        for block in map(TensorRange._make, blocks):
            part = gradients[block.tensor].reshape(-1)[int(block.start) // 4 : int(block.end) // 4]
            optimiser.step_block(TensorRange(block.tensor, int(block.start), int(block.end)), part, 0.01 / (1 + step))


def same(one: dict[str, Array], other: dict[str, Array]) -> bool:
    return all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_blocks_in_any_order_are_what_torch_does_with_whole_tensors(subtests: pytest.Subtests) -> None:
    for name, arguments in OPTIMISERS:
        with subtests.test(name=name, arguments=arguments):
            weights, wanted = arrays(0), arrays(0)
            step_by_blocks(made(weights, name, arguments), range(4))
            tensors = {key: torch.from_numpy(array) for key, array in wanted.items()}
            reference = getattr(torch.optim, name)(tensors.values(), lr=0.01, **arguments)
            for step in range(4):
                for key, gradient in arrays(100 + step).items():
                    tensors[key].grad = torch.from_numpy(gradient)
                reference.param_groups[0]["lr"] = 0.01 / (1 + step)
                reference.step()
            assert same(weights, wanted)
            assert not same(weights, arrays(0))


@pytest.mark.slow
def test_a_checkpoint_is_per_tensor_and_goes_on_either_way(subtests: pytest.Subtests) -> None:
    """As written by a host that stepped whole tensors, or by one that stepped blocks."""
    for whole_first in [True, False]:
        for name, arguments in OPTIMISERS:
            with subtests.test(name=name, arguments=arguments, whole_first=whole_first):
                wanted = arrays(0)
                step_by_blocks(made(wanted, name, arguments), range(4))
                weights = arrays(0)
                before = made(weights, name, arguments)
                if whole_first:
                    for step in range(2):
                        for key, gradient in arrays(100 + step).items():
                            before.step_block(TensorRange(key, 0, gradient.nbytes), gradient, 0.01 / (1 + step))
                else:
                    step_by_blocks(before, range(2))
                state = {entry: array.copy() for entry, array in before.state().items()}
                for entry, array in state.items():
                    assert ":" not in entry
                    assert array.shape in ((), SHAPES[entry.rpartition("/")[2]])
                after = made(weights, name, arguments)
                after.load_state(state)
                step_by_blocks(after, range(2, 4))
                assert same(weights, wanted)


def test_blocks_that_have_taken_other_steps_stay_apart_in_a_checkpoint() -> None:
    """All devices were lost in the middle of a step: part of a tensor is stepped, the rest is not."""
    missing = [TensorRange("large", BLOCK_BYTES, 2 * BLOCK_BYTES)]
    wanted, weights = arrays(0), arrays(0)
    for each, through_checkpoint in ((wanted, False), (weights, True)):
        optimiser = made(each, "Adam", {})
        step_by_blocks(optimiser, range(1))
        step_by_blocks(optimiser, range(1, 2), missing)
        if through_checkpoint:
            state = {entry: array.copy() for entry, array in optimiser.state().items()}
            assert state[f"{BLOCK_BYTES}:tensor/step/large"] == 1
            assert state["0:tensor/step/large"] == 2
            optimiser = made(each, "Adam", {})
            optimiser.load_state(state)
        step_by_blocks(optimiser, range(2, 4))
    assert same(weights, wanted)
    with pytest.raises(CheckpointError, match="does not fit"):
        made(arrays(0), "Adam", {}).load_state({"7:tensor/step/large": np.asarray(1.0, np.float32)})


def test_what_is_not_element_wise_is_left_whole() -> None:
    assert made(arrays(0), "Adafactor", {}).block_bytes is None


@given(items=st.integers(0, 1000), item=st.sampled_from([1, 2, 4, 8]), block=st.none() | st.integers(1, 999))
def test_blocks_are_whole_elements_and_cover_a_tensor_once(items: int, item: int, block: int | None) -> None:
    edges = item_blocks(items, item, block)
    assert edges[0][0] == 0
    assert edges[-1][1] == items * item
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(edges))
    assert all(start % item == end % item == 0 for start, end in edges)
    if block is not None and block >= item:
        assert all(end - start <= tensor_block_bytes(items * item, block) for start, end in edges)


@given(items=st.integers(1, 300), block=st.integers(1, 90), data=st.data())
def test_a_slice_finds_the_blocks_that_it_lies_in(items: int, block: int, data: st.DataObject) -> None:
    blocks = cut_blocks([TensorSpec("w", "<f4", (items,))], 4 * block)["w"]
    start = data.draw(st.integers(0, 4 * items - 1))
    end = data.draw(st.integers(start + 1, 4 * items))
    assert list(overlapped(blocks, start, end)) == [each for each in blocks if each.start < end and start < each.end]


@given(size=st.integers(1, 200), cell=st.none() | st.integers(1, 250), data=st.data())
def test_cells_are_told_once_when_all_of_their_bytes_are_there(
    size: int, cell: int | None, data: st.DataObject
) -> None:
    inner = data.draw(st.sets(st.integers(1, size - 1), max_size=8)) if size > 1 else set()
    edges = sorted({0, size, *inner})
    ranges = data.draw(st.permutations(list(itertools.pairwise(edges))))
    cells, there, told = Cells(size, cell), np.zeros(size, bool), np.zeros(size, bool)
    grid = cell or size
    for start, end in ranges:
        there[start:end] = True
        if (ready := cells.add(start, end)) is not None:
            assert ready[0] % grid == 0
            assert ready[1] % grid == 0 or ready[1] == size
            assert not told[slice(*ready)].any()
            told[slice(*ready)] = True
        whole = [there[low : low + grid].all() for low in range(0, size, grid)]
        assert np.array_equal(told, np.repeat(whole, grid)[:size])
    assert told.all()


def test_a_release_tells_everyone_of_every_block_once_whenever_they_ask() -> None:
    blocks = [TensorRange("w", start, start + 4) for start in range(0, 16, 4)]
    release = Release(blocks)
    first: list[TensorRange] = []
    later: list[TensorRange] = []
    release.subscribe(first.append)
    release.add(blocks[2])
    release.add(blocks[2])
    release.subscribe(later.append)
    release.add(blocks[0])
    release.add_all()
    assert first == later == [blocks[2], blocks[0], blocks[1], blocks[3]]


@given(st.lists(st.booleans(), max_size=12), st.integers(0, 2**31 - 1))
def test_neighbours_in_a_row_become_one_block_and_nothing_else_does(kept: list[bool], seed: int) -> None:
    blocks = [TensorRange(name, 8 * n, 8 * n + 8) for name in "ab" for n in range(6)]
    chosen = [block for block, keep in zip(blocks, kept, strict=False) if keep]
    if seed % 2:
        np.random.default_rng(seed).shuffle(chosen)  # type: ignore[arg-type]
        chosen = [TensorRange(str(tensor), int(start), int(end)) for tensor, start, end in chosen]
    found = joined(chosen)
    apart = [TensorRange(each.tensor, start, start + 8) for each in found for start in range(each.start, each.end, 8)]
    assert apart == chosen
    for one, other in itertools.pairwise(found):
        assert one.tensor != other.tensor or one.end != other.start


def test_a_tensor_without_a_byte_stays_a_block_of_its_own() -> None:
    nothing = TensorRange("a", 0, 0)
    assert joined([nothing, TensorRange("a", 0, 8), nothing]) == [nothing, TensorRange("a", 0, 8), nothing]
