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

from csd_emu.cycles.parameters import CoreParameters
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
        assert core.dram_bytes >= len(lines) * LINE
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
        return cycles, core.mispredicted


def test_a_branch_that_is_predicted_wrongly_costs_so_many_cycles(model: ctypes.CDLL) -> None:
    source = random.Random(2)
    steady, none = branches(model, [False] * 4000)
    chance, wrong = branches(model, [source.random() < 0.5 for _ in range(4000)])
    assert none < 20 < 1000 < wrong
    assert (chance - steady) / wrong >= CoreParameters().mispredict_cycles - 1


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


@pytest.mark.parametrize(
    "wrong",
    [
        {"l1_data_kibibytes": 33},
        {"l2_kibibytes": 0},
        {"line_fills": 9},
        {"prefetch_streams": 9},
        {"clock_megahertz": 0},
    ],
)
def test_the_model_refuses_what_no_core_is(model: ctypes.CDLL, wrong: dict[str, int]) -> None:
    parameters = c_parameters(CoreParameters())
    assert model.parameters_problem(ctypes.byref(parameters)) is None
    for name, value in wrong.items():
        setattr(parameters, name, value)
    assert model.parameters_problem(ctypes.byref(parameters))
    assert not model.core_new(ctypes.byref(parameters))
