"""Caches, TLBs, line fills and DRAM of the core model, on access patterns whose cost is known."""

from __future__ import annotations

import ctypes
import itertools
import random
import shutil
from collections.abc import Iterable, Iterator, Sequence

import pytest

from csd_emu.cycles.parameters import CoreParameters
from tests.support.core_model import Counters, ModelCore, build_model

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="the model is built with the machine's compiler")

LOAD, CHASE, STORE, NOP = 0xF9400041, 0xF9400021, 0xF9000041, 0xD503201F  # ldr x1, [x2]; ldr x1, [x1]; str x1, [x2]
LOAD_S4, LOAD_S5, MULTIPLY_ADD = 0xBD400024, 0xBD400045, 0x1F050080  # ldr s4, [x1]; ldr s5, [x2]; fmadd s0, s4, s5, s0
ZERO_LINE = 0xD50B7421  # dc zva, x1
LINE, PAGE, BASE = 64, 4096, 0x1000000
USUAL = CoreParameters()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build_model(tmp_path_factory.mktemp("model"))


def accesses(core: ModelCore, words: Sequence[int], addresses: Iterable[int]) -> int:
    """Run the words again and again, an address each, some 64 in a block; return the cycles that it took."""
    before, cycles = core.counters.cycles, 0
    places: Iterator[int] = iter(addresses)
    while block := list(itertools.islice(places, 64 // len(words) * len(words))):
        code = list(itertools.islice(itertools.cycle(words), len(block)))
        cycles = core.run(code, block, 0x400000)
    return cycles - before


@pytest.mark.parametrize(("pages", "cycles"), [(8, 3), (64, 3 + 2), (2048, 3 + 12 + 2 + 20)])
def test_a_load_waits_for_its_translation(model: ctypes.CDLL, pages: int, cycles: int) -> None:
    addresses = [BASE + page * PAGE + page // 8 % 64 * LINE for page in range(pages)]
    with ModelCore(model) as core:
        accesses(core, [CHASE], addresses * 2)
        assert accesses(core, [CHASE], addresses) / pages == pytest.approx(cycles, abs=0.5)


@pytest.mark.parametrize(("kibibytes", "misses"), [(16, 0), (64, 1024)])
def test_code_that_fits_is_fetched_once(model: ctypes.CDLL, kibibytes: int, misses: int) -> None:
    starts = range(0x400000, 0x400000 + (kibibytes << 10), LINE)
    with ModelCore(model) as core:
        for start in starts:
            core.run([NOP] * 16, (), start + LINE, start)
        cold, cycles = core.counters.instruction_misses, core.counters.cycles
        for start in starts:
            core.run([NOP] * 16, (), start + LINE, start)
        assert cold == len(starts)
        assert core.counters.instruction_misses - cold >= misses / 2
        assert (core.counters.cycles - cycles == 8 * len(starts)) == (not misses)


def test_code_is_translated_page_by_page(model: ctypes.CDLL) -> None:
    starts = [0x400000 + (PAGE + LINE) * page for page in range(20)]
    with ModelCore(model) as core:
        for start in [start for start in starts for _ in range(2)]:
            core.run([NOP, NOP], (), start, start)
        assert core.counters.tlb_misses == len(starts)


@pytest.mark.parametrize("fills", [1, 2, 4])
def test_so_many_lines_are_filled_at_once(model: ctypes.CDLL, fills: int) -> None:
    # ldr x4 to x7, [x2]; add x8, x4, x5; add x9, x6, x7
    words, groups = [0xF9400044, 0xF9400045, 0xF9400046, 0xF9400047, 0x8B050088, 0x8B0700C9], 500
    lines = random.Random(1).sample(range(1 << 20), 4 * groups)
    addresses = [
        BASE + LINE * line if line else 0 for group in range(groups) for line in (*lines[4 * group :][:4], 0, 0)
    ]
    slow = CoreParameters(line_fills=fills, dram_nanoseconds=500)
    with ModelCore(model, slow) as core:
        cycles = accesses(core, words, addresses) / groups
    assert cycles == pytest.approx(4 / fills * (slow.dram_nanoseconds + slow.l2_cycles), rel=0.2)


def test_whole_lines_are_written_without_being_read(model: ctypes.CDLL) -> None:
    size = 1 << 20
    with ModelCore(model) as core:
        cycles = accesses(core, [STORE], range(BASE, BASE + size, 8))
        assert size <= core.counters.dram_bytes <= 1.01 * size
        assert cycles >= size / LINE * LINE * USUAL.clock_megahertz / USUAL.dram_megabytes_per_second


@pytest.mark.parametrize(("l1", "l2"), [(32, 512), (64, 64)])  # where both are alike L1 keeps lines that L2 has not
def test_each_line_that_was_written_in_part_is_read_once_and_written_back_once(
    model: ctypes.CDLL, l1: int, l2: int
) -> None:
    written, others = range(BASE, BASE + (1 << 20), LINE), range(2 * BASE, 2 * BASE + (2 << 20), LINE)
    with ModelCore(model, CoreParameters(prefetch_streams=0, l1_data_kibibytes=l1, l2_kibibytes=l2)) as core:
        accesses(core, [STORE], written)
        accesses(core, [LOAD], others)  # displace them all
        moved = core.counters.dram_bytes // LINE - core.counters.instruction_misses
        assert moved == 2 * len(written) + len(others)


@pytest.mark.parametrize(
    ("lines", "prefetches"),
    [
        ([0, 1], 0),
        ([0, 1, 2], 5),
        ([0, 1, 2, 3], 5),  # five are under way
        ([30, 29, 28], 5),
        ([0, 2, 4], 5),
        ([0, 9, 18], 0),
        ([10, 11, 9, 12], 0),
        ([0, 1, 3], 5),  # a multiple of the stride
        ([59, 60, 61], 2),  # not beyond the page
        ([0, 100, 1, 101, 2, 102], 5),
        (
            [0, 100, 200, 300, 400, 1, 101, 201, 301, 401, 2, 102, 202, 302, 402],
            0,
        ),  # five streams, and four are followed
    ],
)
def test_the_third_line_of_a_stream_has_the_next_ones_fetched(
    model: ctypes.CDLL, lines: list[int], prefetches: int
) -> None:
    with ModelCore(model) as core:
        accesses(core, [LOAD], [BASE + LINE * line for line in lines])
        assert core.counters.prefetches == prefetches


@pytest.mark.parametrize("parameters", [CoreParameters(prefetch_streams=0), CoreParameters(prefetch_lines=16)])
def test_loads_that_nothing_uses_come_no_faster_than_the_bus_and_the_line_fills_allow(
    model: ctypes.CDLL, parameters: CoreParameters
) -> None:
    words, lines = [LOAD + register for register in range(2, 18)], 16 * PAGE // LINE  # ldr x3 to x18, [x2]
    with ModelCore(model, parameters) as core:
        cycles = accesses(core, words, [BASE + LINE * line for line in range(lines)]) / lines
    of_bus = LINE * USUAL.clock_megahertz / USUAL.dram_megabytes_per_second
    of_fills = 0 if parameters.prefetch_streams else USUAL.dram_nanoseconds / parameters.line_fills
    assert max(of_bus, of_fills) * 0.95 <= cycles


def test_a_load_into_a_register_waits_for_the_load_before_into_it(model: ctypes.CDLL) -> None:
    def cycles(second: int) -> int:
        with ModelCore(model, CoreParameters(prefetch_streams=0)) as core:
            core.run([LOAD, *[NOP] * 400], [BASE, *[0] * 400], 0x400000)  # warms code, and what the second load reads
            before = core.counters.cycles
            return core.run([LOAD, second], [BASE + 8 * PAGE, BASE], 0x400000) - before

    assert cycles(LOAD) >= USUAL.dram_nanoseconds > 40 > cycles(LOAD + 2)


def test_a_line_that_is_zeroed_is_not_read(model: ctypes.CDLL) -> None:
    with ModelCore(model) as core:
        accesses(core, [ZERO_LINE], [0] * 640)
        assert core.counters.dram_bytes - core.counters.instruction_misses * LINE == 640 * LINE


def product(size: int, block: int) -> Iterator[list[int]]:
    """Yield the addresses of loads of c = a b, single precision, one list for each sum of `block` products."""
    a, b = BASE, BASE + size * size * 4 + LINE
    blocks = range(0, size, block)
    for row_block, column_block, inner_block in itertools.product(blocks, blocks, blocks):
        for row, column in itertools.product(range(block), repeat=2):
            inner = range(inner_block, inner_block + block)
            yield [
                address
                for k in inner
                for address in (a + 4 * ((row_block + row) * size + k), b + 4 * (k * size + column_block + column), 0)
            ]


def run_product(model: ctypes.CDLL, size: int, block: int) -> Counters:
    with ModelCore(model, CoreParameters(l1_data_kibibytes=4, l2_kibibytes=64)) as core:
        for addresses in product(size, block):
            core.run([LOAD_S4, LOAD_S5, MULTIPLY_ADD] * block, addresses, 0x400000)
        return Counters.from_buffer_copy(core.counters)


def test_a_product_in_blocks_misses_less_and_is_faster(model: ctypes.CDLL) -> None:
    plain, blocked = run_product(model, 64, 64), run_product(model, 64, 16)
    assert plain.instructions == blocked.instructions == 3 * 64**3
    assert plain.l1_misses > 5 * blocked.l1_misses
    assert plain.cycles > 1.5 * blocked.cycles
    assert plain.cycles / plain.instructions >= 0.5


def test_a_prefetched_line_that_is_used_keeps_its_stream_going(model: ctypes.CDLL) -> None:
    lines = [BASE + LINE * line for line in range(PAGE // LINE)]
    with ModelCore(model) as core:
        accesses(core, [LOAD], lines)
        assert (core.counters.l1_misses, core.counters.prefetches) == (3, len(lines) - 3)


def test_stores_to_a_line_that_is_under_way_take_no_other_room(model: ctypes.CDLL) -> None:
    def cycles(addresses: list[int]) -> int:
        with ModelCore(model, CoreParameters(l1_data_kibibytes=4, prefetch_streams=0)) as core:
            core.run([NOP] * 60, (), 0x400000)
            before = core.counters.cycles
            return core.run([STORE] * len(addresses), addresses, 0x400000) - before

    lines = [BASE + 512 * number for number in range(8)]
    few, twice = cycles(lines[:4]), cycles([address + part for address in lines[:4] for part in (0, 8)])
    assert few <= twice <= few + 4  # a cycle each at most
    assert cycles(lines) > twice + USUAL.dram_nanoseconds / 2  # six have room
