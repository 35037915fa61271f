"""The core model against schedules that were counted by hand, and memory that is known."""

from __future__ import annotations

import ctypes
import itertools
import random
import shutil
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.cycles.parameters import RANGES, CoreParameters
from firmware_agent.common.errors import ConfigurationError
from tests.support.core_model import ModelCore, build_model, c_parameters

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="the model is built with the machine's compiler")

ADD, ADD_APART, ADD_CHAIN = 0x8B030041, 0x8B0600A4, 0x8B020021  # add x1, x2, x3; x4, x5, x6; x1, x1, x2
MULTIPLY, MULTIPLY_WHOLE, MULTIPLY_ADD = 0x1B027C21, 0x9B027C21, 0x1B030441  # mul w1, w1, w2; x1; madd w1, w2, w3, w1
DIVIDE = 0x1AC20821  # udiv w1, w1, w2
LOAD, CHASE, USE, STORE = 0xF9400041, 0xF9400021, 0x8B030023, 0xF9000041  # ldr x1, [x2]; [x1]; add x3, x1, x3; str
LOAD_64, LOAD_128 = 0xFD400041, 0x3DC00041  # ldr d1, [x2]; ldr q1, [x2]
FUSED = [0x4E23CC40 + number for number in (4, 5, 6, 7)]  # fmla v4.4s to v7.4s, v2.4s, v3.4s
FUSED_HALF = [0x0E22CC20, 0x0E26CCA4]  # fmla v0.2s, v1.2s, v2.2s; v4.2s, v5.2s, v6.2s
FADD, FDIV, FDIV_WHOLE = 0x1E212800, 0x1E211800, 0x1E611800  # s0, s0, s1; d0, d0, d1
NOP, COMPARE, BRANCH_EQUAL = 0xD503201F, 0xEB02003F, 0x54000040  # nop; cmp x1, x2; b.eq .+8
PAGE, LINE = 4096, 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build_model(tmp_path_factory.mktemp("model"))


def cycles_of(model: ctypes.CDLL, words: Sequence[int], addresses: Sequence[int] = ()) -> float:
    """Return the cycles of one repetition in a long row of them, all lines there."""
    with ModelCore(model) as core:
        many = 8
        for _ in range(3):
            before = core.run(list(words) * many, list(addresses) * many)
        return (core.run(list(words) * many, list(addresses) * many) - before) / many


@pytest.mark.parametrize(
    ("words", "cycles"),
    [
        ([ADD, ADD_APART], 1),
        ([NOP, NOP], 1),
        ([ADD_CHAIN], 1),
        ([MULTIPLY], 4),  # 3, and a stage more for an operand that the multiplier reads early
        ([MULTIPLY_WHOLE], 5),
        ([MULTIPLY_ADD], 2),  # the accumulator is needed late
        ([FUSED[0]], 4),  # the accumulator is handed on after 4 of 8 cycles
        (FUSED, 4),  # one 128-bit operation per cycle
        (FUSED_HALF * 4, 4 * 4),  # two chains of accumulators
        ([FADD], 4),
        ([FDIV], 18),
        ([FDIV_WHOLE], 33),
        ([0x1E221820, 0x1E221823], 28),  # fdiv s0, s1, s2; fdiv s3, s1, s2: one unit, all but 4 cycles
        ([0x1E61C000], 32),  # fsqrt d0, d0
        ([0x8B010421], 2),  # add x1, x1, x1, lsl #1: shifted a stage earlier
        ([0x93C10C21], 2),  # ror x1, x1, #3
        ([0x9BC27C21], 6),  # umulh x1, x1, x2
        ([0x9B227C21], 4),  # smull x1, w1, w2
        ([0x1AC20C21], 10),  # sdiv w1, w1, w2
        ([0x9AC20C21], 14),  # sdiv x1, x1, x2
        ([0x9AC30C41, 0x9AC30C44], 24),  # sdiv x1, x2, x3; sdiv x4, x2, x3: one divider
        ([0x9B037C41, 0x9B037C44], 4),  # mul x1, x2, x3; mul x4, x2, x3: the multiplier twice each
        ([0x9AC24C21], 3),  # crc32x w1, w1, x2
        ([0xAB020021, 0x9A020021], 2),  # adds x1, x1, x2; adc x1, x1, x2
        ([0x9A820021], 1),  # csel x1, x1, x2, eq
        ([0x0E26D4A4, 0x0E26D4A7], 1),  # fadd v4.2s, v5.2s, v6.2s; fadd v7.2s, v5.2s, v6.2s
        ([0x4E26D4A4, 0x4E26D4A7], 2),  # of .4s: a whole vector takes both slots
        ([0x1E380001, 0x1E220020], 8),  # fcvtzs w1, s0; scvtf s0, w1
        ([0x7E70D800], 4),  # faddp d0, v0.2d
        ([0x4EB1B800], 3),  # addv s0, v0.4s
        ([0x6E30F800], 8),  # fmaxv s0, v0.4s
        ([0x4E022000], 3),  # tbl v0.16b, {v0.16b, v1.16b}, v2.16b
        ([0x4EA29420], 1),  # mla v0.4s, v1.4s, v2.4s: the accumulator is needed late
        ([0x1F020020], 4),  # fmadd s0, s1, s2, s0
        ([0xD5033BBF], 6),  # dmb ish
    ],
)
def test_schedules_counted_by_hand(model: ctypes.CDLL, words: list[int], cycles: float) -> None:
    assert cycles_of(model, words) == pytest.approx(cycles, abs=0.13)


@pytest.mark.parametrize(
    ("words", "cycles"),
    [
        ([CHASE], 3),
        ([LOAD, ADD_APART], 1),
        ([LOAD_64], 1),
        ([LOAD_128], 2),
        ([LOAD, USE], 2),  # in order: the next load issues beside the use
        ([STORE], 1),
        ([0x91002021, 0xF9400023], 2),  # add x1, x1, #8; ldr x3, [x1]
        ([0xF8408423], 1),  # ldr x3, [x1], #8: the base moves on at once
        ([0xA9401444], 2),  # ldp x4, x5, [x2]
        ([0xA9001444], 1),  # stp x4, x5, [x2]
        ([0xAD401444], 4),  # ldp q4, q5, [x2]
        ([0xAD001444], 2),  # stp q4, q5, [x2]
        ([0x4C402840], 8),  # ld1 {v0.4s, v1.4s, v2.4s, v3.4s}, [x2]
        ([0x4C002840], 4),  # st1, the same
        ([0x3DC00044, ADD, ADD_APART], 3),  # ldr q4, [x2] issues alone for two cycles
        ([0xFD400044, 0x1E290888], 3),  # ldr d4, [x2]; fmul s8, s4, s9
        ([0x1B037C41, 0xF9000041], 2),  # mul w1, w2, w3; str x1, [x2]: the datum is needed late
        ([LOAD_64, *FUSED[:3]], 4),  # ncnn's pattern: the load has a cycle of its own
        ([LOAD_64, *FUSED], 9),  # here it waits for the multiply-adds of 4 cycles ago
        ([0xC85F7C41], 2),  # ldxr x1, [x2]
        ([0xF9800020], 1),  # prfm pldl1keep, [x1]
    ],
)
def test_loads_that_the_first_level_has(model: ctypes.CDLL, words: list[int], cycles: float) -> None:
    assert cycles_of(model, words, [0x10000] * len(words)) == pytest.approx(cycles, abs=0.13)


def chase_cycles(model: ctypes.CDLL, size_bytes: int, parameters: CoreParameters | None = None) -> float:
    """Return cycles per load of a chain through random lines of so many bytes, the second time round."""
    lines = list(range(0x100000, 0x100000 + size_bytes, LINE))
    random.Random(1).shuffle(lines)
    with ModelCore(model, parameters) as core:
        seconds = [core.run([CHASE], [address], 0x400000) for _ in range(2) for address in lines]
    return (seconds[-1] - seconds[len(lines)]) / (len(lines) - 1)


def test_a_chain_of_loads_shows_each_level(model: ctypes.CDLL) -> None:
    usual = CoreParameters()
    first, second, memory = (chase_cycles(model, size << 10) for size in (16, 256, 8192))
    assert first == pytest.approx(3, abs=1)
    assert second == pytest.approx(3 + usual.l2_cycles + 2, abs=3)
    assert memory == pytest.approx(3 + usual.l2_cycles + usual.dram_nanoseconds, rel=0.3)
    farther = CoreParameters(dram_nanoseconds=2 * usual.dram_nanoseconds)
    assert chase_cycles(model, 8 << 20, farther) - memory == pytest.approx(usual.dram_nanoseconds, rel=0.1)


def stream_cycles(model: ctypes.CDLL, parameters: CoreParameters) -> float:
    lines = range(0x1000000, 0x1000000 + (1 << 20), LINE)
    with ModelCore(model, parameters) as core:
        cycles = [core.run([LOAD, USE], [address, 0], 0x400000) for address in lines][-1]
        assert core.counters.dram_bytes >= len(lines) * LINE
    return cycles / len(lines)


@pytest.mark.parametrize("megabytes_per_second", [500, 4000])
def test_a_stream_is_prefetched_but_not_faster_than_the_bus(model: ctypes.CDLL, megabytes_per_second: int) -> None:
    ahead, never = (
        stream_cycles(model, CoreParameters(dram_megabytes_per_second=megabytes_per_second, prefetch_streams=streams))
        for streams in (4, 0)
    )
    bus = LINE * CoreParameters().clock_megahertz / megabytes_per_second
    assert bus <= ahead <= never * 1.01
    if megabytes_per_second == 4000:
        assert ahead < never / 2


def branches(model: ctypes.CDLL, outcomes: Sequence[bool]) -> tuple[int, int]:
    with ModelCore(model) as core:
        for taken in outcomes:
            cycles = core.run([COMPARE, BRANCH_EQUAL], (), 0x40000C if taken else 0x400008)
        return cycles, core.counters.mispredicted


def test_a_branch_that_is_predicted_wrongly_costs_so_many_cycles(model: ctypes.CDLL) -> None:
    source = random.Random(2)
    steady, none = branches(model, [False] * 4000)
    chance, wrong = branches(model, [source.random() < 0.5 for _ in range(4000)])
    assert none < 20 < 1000 < wrong
    assert (chance - steady) / wrong >= CoreParameters().mispredict_cycles - 1


def test_a_pattern_of_outcomes_is_learned(model: ctypes.CDLL) -> None:
    pattern = [True, True, False, True, False]
    _, learned = branches(model, pattern * 60)
    _, later = branches(model, pattern * 200)
    assert 0 < learned == later < 60


def test_one_branch_issues_in_a_cycle(model: ctypes.CDLL) -> None:
    with ModelCore(model) as core:
        cycles = [core.run([BRANCH_EQUAL], (), 0x400004, 0x400000) for _ in range(100)]
        assert cycles[-1] - cycles[-41] == 40


def test_a_taken_branch_costs_a_cycle_but_not_in_a_loop_on_itself(model: ctypes.CDLL) -> None:
    jump, times = 0x14000000, 100  # b: where to is said by the next block
    with ModelCore(model) as core:
        for _ in range(2):
            core.run([ADD, ADD_APART, ADD, jump], (), 0x400000, 0x400000)
        before = core.counters.cycles
        for _ in range(times):
            core.run([ADD, ADD_APART, ADD, jump], (), 0x400000, 0x400000)
        assert core.counters.cycles - before == 2 * times
    with ModelCore(model) as core:
        for start in (0x400000, 0x400040) * times:
            before, cycles = core.counters.cycles, core.run([NOP, jump], (), start ^ 0x40, start)
        assert cycles - before == 2  # 1 would be without


@pytest.mark.parametrize(("depth", "wrong"), [(8, 0), (9, 1), (20, 12)])
def test_returns_are_predicted_eight_deep(model: ctypes.CDLL, depth: int, wrong: int) -> None:
    call, back, sites = 0x94000000, 0xD65F03C0, [0x400000 + 64 * number for number in range(depth)]  # bl; ret
    with ModelCore(model) as core:
        for site in sites:
            core.run([call], (), site + 64, site)
        for site in reversed(sites):
            core.run([back], (), site + 4, 0x500000)
        assert core.counters.mispredicted == wrong


@pytest.mark.parametrize(("targets", "wrong"), [([0x500000], 1), ([0x500000, 0x600000], 50)])
def test_an_indirect_branch_is_predicted_to_go_where_it_went(
    model: ctypes.CDLL, targets: list[int], wrong: int
) -> None:
    with ModelCore(model) as core:
        for target in itertools.islice(itertools.cycle(targets), 50):
            core.run([0xD61F0020], (), target)  # br x1
        assert core.counters.mispredicted == wrong


def test_cores_know_nothing_of_each_other(model: ctypes.CDLL) -> None:
    words, addresses = [LOAD, USE, *FUSED], [0x200000, 0, 0, 0, 0, 0]
    with ModelCore(model) as alone:
        expected = [alone.run(words, addresses) for _ in range(5)]
    with ModelCore(model) as one, ModelCore(model) as other:
        seen = []
        for _ in range(5):
            seen.append(one.run(words, addresses))
            other.run([STORE] * 3, [0x200000, 0x900000, 0x200040])
    assert seen == expected


WORDS = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=64)


@settings(deadline=None, max_examples=300)
@given(words=WORDS, data=st.data())
def test_no_words_crash_it_and_two_issue_in_a_cycle_at_most(
    model: ctypes.CDLL, words: list[int], data: st.DataObject
) -> None:
    addresses = data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=len(words), max_size=len(words)))
    begin = data.draw(st.integers(0, 2**62)) * 4
    with ModelCore(model) as core:
        cycles = [core.run(words, addresses, data.draw(st.integers(1, 2**64 - 1)), begin) for _ in range(3)]
        assert all(before <= after for before, after in itertools.pairwise(cycles))
        assert cycles[-1] >= 3 * len(words) / 2 - 2


def test_groups_of_instructions_are_all_decoded(model: ctypes.CDLL) -> None:
    """Every word of a grid over the fields that choose an instruction."""
    source = random.Random(3)
    words = [source.getrandbits(32) & 0x01FFFFFF | group << 25 for group in range(16) for _ in range(2000)]
    with ModelCore(model) as core:
        for begin in range(0, len(words), 500):
            core.run(words[begin : begin + 500])


@pytest.mark.parametrize("name", RANGES)
def test_model_and_python_refuse_the_same_parameters(model: ctypes.CDLL, name: str) -> None:
    low, high = RANGES[name]
    for value in {0, low - 1, low, low + 1, low + 2, high - 1, high, high + 1, 2**32 - 1} - {-1}:
        parameters = c_parameters(CoreParameters())
        setattr(parameters, name, value)
        refused = model.parameters_problem(ctypes.byref(parameters)) is not None
        assert refused == (model.core_new(ctypes.byref(parameters)) is None)
        if refused:
            with pytest.raises(ConfigurationError, match=name):
                CoreParameters(**{name: value})
        else:
            CoreParameters(**{name: value})
