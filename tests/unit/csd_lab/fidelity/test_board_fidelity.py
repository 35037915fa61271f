import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.cycles.parameters import CoreParameters
from csd_emu.profiles.calibration.cycle_counts import PhaseCycles
from csd_lab.bench.bench_fidelity import board_figures
from csd_lab.fidelity.board_fidelity import FITTED_BOARD, ComparedFigure, find_serial_share, predict_speed_up, summarize
from csd_lab.fidelity.published_boards import FITTED_KIBIBYTES, load_published
from csd_lab.generate.boards import load_compared

PUBLISHED = load_published()


def figure(error: float, kind: str = "network", judged: bool = True) -> ComparedFigure:
    return ComparedFigure(kind, "board", "net", "ms", 1 + error, 1.0, error, judged, "a source")


def test_every_published_figure_is_positive_and_says_where_it_is_from() -> None:
    for entries in (PUBLISHED.boards, PUBLISHED.memory, PUBLISHED.coremark):
        assert len({each.board for each in entries}) == len(entries)
        assert all(" " in each.source for each in entries)
    times = [time for board in PUBLISHED.boards for times in board.milliseconds.values() for time in times.values()]
    times += [time for board in PUBLISHED.memory for time in board.random_read_nanoseconds.values()]
    times += [time for board in PUBLISHED.memory for time in board.strided_read_nanoseconds.values()]
    times += [rate for board in PUBLISHED.memory for rate in board.megabytes_per_second.values()]
    times += [board.all_cores_megabytes_per_second for board in PUBLISHED.boards]
    assert all(math.isfinite(time) and time > 0 for time in times)


def test_a_board_has_one_thread_and_its_networks_have_shapes() -> None:
    assert FITTED_BOARD in [board.board for board in PUBLISHED.boards]
    for board in PUBLISHED.boards:
        assert 1 in board.milliseconds
        assert {name for times in board.milliseconds.values() for name in times} <= set(PUBLISHED.networks)
        assert board.core.clock_megahertz == board.clock_megahertz


def test_a_boards_memory_makes_a_core() -> None:
    for board in PUBLISHED.memory:
        core = board.core
        assert core.dram_megabytes_per_second == board.megabytes_per_second["write"]
        latency = board.random_read_nanoseconds.get(FITTED_KIBIBYTES)
        if latency is None:  # then nothing of what is judged sets it
            assert core.dram_nanoseconds == CoreParameters().dram_nanoseconds
        else:
            assert 0.7 * latency < core.dram_nanoseconds < 1.1 * latency


@given(st.lists(st.floats(-0.9, 3), min_size=1, max_size=9), st.lists(st.floats(-0.9, 3), max_size=5))
def test_errors_are_of_judged_figures_whatever_their_sign(judged: list[float], others: list[float]) -> None:
    report = summarize([*map(figure, judged), *(figure(error, judged=False) for error in others)])
    assert report.worst_errors == {"network": pytest.approx(max(map(abs, judged)))}
    assert min(map(abs, judged)) <= report.median_errors["network"] <= report.worst_errors["network"]
    assert len(report.figures) == len(judged) + len(others)


@given(st.integers(1, 10**9), st.integers(0, 10**9), st.integers(2, 8), st.floats(0, 1))
def test_so_many_threads_are_faster_but_not_more_than_so_many_times(
    cycles: int, moved: int, threads: int, share: float
) -> None:
    for board in PUBLISHED.boards:
        speed_up = predict_speed_up(PhaseCycles(cycles, cycles, moved), threads, board, share)
        assert 1 - 1e-9 <= speed_up <= threads * (1 + 1e-9)


@given(st.floats(0, 0.4))
def test_the_serial_share_gives_the_median_speed_up_of_its_board(on_bus: float) -> None:
    (board,) = (board for board in PUBLISHED.boards if board.board == FITTED_BOARD)
    one, two = board.milliseconds[1], board.milliseconds[2]
    moved = round(on_bus * board.all_cores_megabytes_per_second * 1e6)
    counted = dict.fromkeys(one, PhaseCycles(1, board.clock_megahertz * 10**6, moved))
    share = find_serial_share(counted, board)
    median = statistics.median(predict_speed_up(counted[name], 2, board, share) for name in two)
    published = statistics.median(one[name] / two[name] for name in two)
    assert median == pytest.approx(published) or (share == 0 and median < published)


def test_what_the_page_compares_is_all_that_is_published_in_the_same_order() -> None:
    expected = [
        (board.board, published)
        for board in PUBLISHED.memory
        for kind in (board.megabytes_per_second, board.random_read_nanoseconds, board.strided_read_nanoseconds)
        for published in kind.values()
    ]
    expected += [(board.board, board.per_megahertz) for board in PUBLISHED.coremark]
    for board in PUBLISHED.boards:
        one = board.milliseconds[1]
        expected += [(board.board, time) for time in one.values()]
        for threads, times in board.milliseconds.items():
            expected += [(board.board, one[name] / times[name]) for name in times if threads > 1]
    assert [(figure.board, figure.published) for figure in load_compared().figures] == expected
    assert load_compared() == summarize(load_compared().figures)


def test_bench_figures_are_of_the_kinds_that_were_compared() -> None:
    assert set(board_figures(load_compared())) == {
        *("memory_error_median", "cnn_error_median", "cnn_error_worst", "threads_error_median"),
        "coremark_per_mhz_error",
    }
    memory = summarize([figure(0.1, "bandwidth"), figure(-0.2, "latency")])
    assert board_figures(memory) == {"memory_error_median": pytest.approx(0.2)}
