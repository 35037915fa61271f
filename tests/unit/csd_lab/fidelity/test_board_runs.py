import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_lab.fidelity.board_runs import (
    MOST_CLOCK_FALL,
    MOST_DRIFT,
    BoardSample,
    find_drift,
    find_throttling,
    hottest,
    parse_run,
    parse_sample,
    reported_megahertz,
)
from firmware_agent.common.errors import DriveUnfit

CLOCKS = st.integers(300_000, 3_000_000)


def during(*clocks: int | None) -> list[BoardSample]:
    return [BoardSample("during", clock) for clock in clocks]


def test_a_run_has_what_was_written_and_sampled_by_repetition() -> None:
    one = "sample before 600000 1400000 0 45000 -\nout a b\nout c\nsample after 1400000 1400000 0 51000\n\nended 0\n"
    first, second = parse_run("board lab: x", one + one, 2)
    assert first == second
    assert first.output == "a b\nc"
    assert first.samples == (
        BoardSample("before", 600_000, 1_400_000, 0, 45.0),
        BoardSample("after", 1_400_000, 1_400_000, 0, 51.0),
    )
    assert (hottest(first.samples), reported_megahertz(first.samples)) == (51.0, 1400.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "0 of 2 repetitions"),
        ("ended 0\n", "1 of 2 repetitions"),
        ("ended 0\n" * 3, "3 of 2 repetitions"),
        ("out x\nerr no such thing\x1b[2J\nended 1\n", r"failed \(exit code 1\): no such thing\?\[2J"),
        ("ended 137\n", "it took too long, or the memory was short"),
        ("err ./memory_loops: Permission denied\nended 126\n", "mounted noexec"),
        ("ended \x07\n", r"exit code \?|exit code \)"),
    ],
)
def test_a_run_that_failed_says_why(text: str, words: str) -> None:
    with pytest.raises(DriveUnfit, match=words):
        parse_run("board lab: x", text, 2)


@pytest.mark.parametrize(
    ("text", "sample"),
    [
        ("before - - -", BoardSample("before")),
        ("before -1 99999999999 zz nan 1e3", BoardSample("before")),
        ("after 0 5 0x50005 99 -40000 999999", BoardSample("after", None, None, 0x50005, 0.099)),
        ("later 1 2 3", None),
        ("before", None),
        ("before - - - " + "45000 " * 1000, BoardSample("before", celsius=45.0)),
    ],
)
def test_nonsense_in_a_sample_is_not_known(text: str, sample: BoardSample | None) -> None:
    assert parse_sample(text) == sample


@given(st.binary(max_size=3000))
def test_whatever_a_board_writes_of_a_run_it_is_a_run_or_a_refusal(noise: bytes) -> None:
    text = noise.decode(errors="replace")
    for written in (text, f"sample during {text}\nended 0\n"):
        try:
            (run,) = parse_run("board lab: x", written, 1)
        except DriveUnfit:
            continue
        assert all(each.clock_khz is None or 10_000 <= each.clock_khz <= 10_000_000 for each in run.samples)
        find_throttling(run.samples)


@given(CLOCKS, st.lists(st.floats(1 - MOST_CLOCK_FALL + 1e-3, 1.5), max_size=9))
def test_a_clock_that_stays_or_rises_is_no_throttling(begin: int, factors: list[float]) -> None:
    assert find_throttling(during(begin, *(round(begin * factor) for factor in factors))) == ""


@given(CLOCKS, st.lists(CLOCKS, max_size=9), st.floats(0.1, 1 - MOST_CLOCK_FALL - 1e-3), st.integers(0, 9))
def test_a_clock_that_falls_once_is_throttling(begin: int, others: list[int], factor: float, place: int) -> None:
    others.insert(place, round(begin * factor))
    assert "clock fell" in find_throttling(during(begin, *others))


@given(CLOCKS, st.floats(0.1, 1 - MOST_CLOCK_FALL - 1e-3))
def test_a_clock_that_is_lower_than_of_programs_before_has_fallen(before: int, factor: float) -> None:
    samples = during(*[round(before * factor)] * 3)
    assert find_throttling(samples) == ""
    assert "clock fell" in find_throttling(samples, before)
    assert find_throttling(during(before), round(before * factor)) == ""


@given(st.lists(CLOCKS, max_size=5))
def test_a_core_that_idles_before_and_after_is_not_throttled(idle: list[int]) -> None:
    samples = [BoardSample("before", clock) for clock in idle] + during(1_400_000) * 2
    assert find_throttling([*samples, *(BoardSample("after", clock) for clock in idle)]) == ""
    assert find_throttling([BoardSample("before", clock) for clock in idle]) == ""


def test_of_programs_that_ended_before_the_first_look_no_clock_counts() -> None:
    assert find_throttling([BoardSample("after", 1_400_000), BoardSample("after", 600_000)], 1_400_000) == ""


def test_flags_that_reading_clears_are_seen_in_the_middle() -> None:
    flags = [BoardSample("during", None, None, flag) for flag in (0, 0x50000, 0)]
    assert "firmware" in find_throttling(flags)
    assert find_throttling([flags[1]] * 3) == ""  # it was so before


@given(st.integers(0, 0xFFFFFFFF), st.integers(0, 3))
def test_the_firmware_counts_now_and_what_began_meanwhile(flags: int, bit: int) -> None:
    now, since = 1 << bit, 1 << bit + 16
    assert "firmware" in find_throttling([BoardSample("after", firmware=flags | now)])
    before, after = flags & ~0xF & ~since, (flags & ~0xF) | since
    assert "firmware" in find_throttling([BoardSample("before", firmware=before), BoardSample("after", firmware=after)])
    # Of before: it throttled once, and does not now.
    assert find_throttling([BoardSample("before", firmware=after), BoardSample("after", firmware=after)]) == ""


@given(st.floats(1e-9, 1e9), st.floats(0.01, 100), st.lists(st.floats(1e-9, 1e9), max_size=4))
def test_drift_is_of_the_last_from_the_first(first: float, factor: float, between: list[float]) -> None:
    drifts = bool(find_drift([first, *between, first * factor]))
    if abs(abs(factor - 1) - MOST_DRIFT) > 1e-6:
        assert drifts == (abs(factor - 1) > MOST_DRIFT)
    assert find_drift([]) == find_drift([first]) == ""


@pytest.mark.parametrize(("factor", "falls"), [(1.0, False), (0.985, False), (0.975, True), (0.5, True)])
def test_two_per_cent_of_clock_are_too_much(factor: float, falls: bool) -> None:
    assert bool(find_throttling(during(1_000_000, round(1_000_000 * factor)))) == falls


@pytest.mark.parametrize(("factor", "drifts"), [(1.0, False), (1.04, False), (0.96, False), (1.06, True), (0.94, True)])
def test_five_per_cent_of_drift_are_too_much(factor: float, drifts: bool) -> None:
    assert bool(find_drift([1.0, 3.0, factor])) == drifts
