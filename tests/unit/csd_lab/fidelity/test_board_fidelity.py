import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.profiles.calibration.cycle_counts import PhaseCycles
from csd_lab.fidelity.board_fidelity import FITTED_BOARD, ComparedFigure, predict_speed_up, summarize
from csd_lab.fidelity.published_boards import FITTED_KIBIBYTES, load_published

PUBLISHED = load_published()


def figure(error: float, kind: str = "network", judged: bool = True) -> ComparedFigure:
    return ComparedFigure(kind, "board", "net", "ms", 1 + error, 1.0, error, judged, "a source")


def test_every_published_figure_is_positive_and_says_where_it_is_from() -> None:
    boards = [(each.board, each.source) for each in PUBLISHED.boards]
    boards += [(each.board, each.source) for each in PUBLISHED.memory]
    assert len({board for board, _ in boards}) == len(boards)
    assert all(" " in source for _, source in boards)
    times = [time for board in PUBLISHED.boards for times in board.milliseconds.values() for time in times.values()]
    assert all(math.isfinite(time) and time > 0 for time in times)


def test_a_board_has_one_thread_and_its_networks_have_shapes() -> None:
    assert FITTED_BOARD in [board.board for board in PUBLISHED.boards]
    for board in PUBLISHED.boards:
        assert set(board.milliseconds) > {1}
        assert {name for times in board.milliseconds.values() for name in times} <= set(PUBLISHED.networks)
        assert board.core.clock_megahertz == board.clock_megahertz


def test_a_boards_memory_makes_a_core() -> None:
    for board in PUBLISHED.memory:
        core = board.core
        assert core.dram_megabytes_per_second == board.megabytes_per_second["write"]
        latency = board.random_read_nanoseconds[FITTED_KIBIBYTES]
        assert 0.7 * latency < core.dram_nanoseconds < 1.1 * latency


@given(st.lists(st.floats(-0.9, 3), min_size=1, max_size=9), st.lists(st.floats(-0.9, 3), max_size=5))
def test_errors_are_of_judged_figures_whatever_their_sign(judged: list[float], others: list[float]) -> None:
    report = summarize([*map(figure, judged), *(figure(error, judged=False) for error in others)])
    assert report.worst_errors == {"network": pytest.approx(max(map(abs, judged)))}
    assert min(map(abs, judged)) <= report.median_errors["network"] <= report.worst_errors["network"]
    assert len(report.figures) == len(judged) + len(others)


@given(st.integers(1, 10**9), st.integers(0, 10**9), st.integers(2, 8))
def test_so_many_threads_are_faster_but_not_more_than_so_many_times(cycles: int, moved: int, threads: int) -> None:
    for board in PUBLISHED.boards:
        assert predict_speed_up(PhaseCycles(cycles, cycles, moved), threads, board) * (1 + 1e-9) >= 1
        assert predict_speed_up(PhaseCycles(cycles, cycles, moved), threads, board) <= threads
