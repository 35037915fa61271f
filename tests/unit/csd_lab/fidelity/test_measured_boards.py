import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.profiles.calibration import CalibrationStore
from csd_emu.profiles.calibration.table_store import SHIPPED
from csd_emu.util.yaml_files import parse_yaml
from csd_lab.fidelity.benchmark_programs import LOOP_BYTES, RANDOM_READS
from csd_lab.fidelity.board_facts import BoardFacts
from csd_lab.fidelity.board_fidelity import ComparedFigure, summarize
from csd_lab.fidelity.board_measurement import BoardMeasurement, MeasuredBoard, MeasuredFigure
from csd_lab.fidelity.measured_boards import (
    DRAM_FIGURES,
    compare_steps,
    find_second_level,
    join_boards,
    make_entries,
    mark_figures,
    name_board,
    write_entries,
)
from csd_lab.fidelity.published_boards import MemoryBoard, PublishedBoards, load_published
from firmware_agent.common.shipped_code import ShippedCode

PUBLISHED = load_published()
FACTS = BoardFacts("Lab", "6.1", [3], 0, None, "", "", "")
ROCK64 = PUBLISHED.memory[0]
# What --on measures, others have published of these.
LIKE_MEASURED = [board for board in PUBLISHED.memory if board.random_read_nanoseconds]


def measured(board: MemoryBoard = ROCK64, throttled: tuple[str, ...] = (), **more: object) -> MeasuredBoard:
    """Return a board whose loops took what a published board's figures say, three times, the last the slowest."""
    base = {16: 2.0, 32: 2.0} | {size: 2.0 + time for size, time in board.random_read_nanoseconds.items()}
    loops = {name: LOOP_BYTES * 1000 / rate for name, rate in board.megabytes_per_second.items()}
    loops |= {f"read in {size} KiB": time * RANDOM_READS for size, time in base.items()}
    figures = {
        name: MeasuredFigure([time, 1.01 * time, 1.02 * time], "heat" if name in throttled else "")
        for name, time in loops.items()
    }
    return MeasuredBoard(
        "Lab",
        "2026-11-27",
        FACTS,
        3,
        BoardMeasurement(float(board.clock_megahertz), None, None, figures, **more),  # type: ignore[arg-type]
    )


def entries(board: MeasuredBoard, steady: bool = False) -> PublishedBoards:
    return make_entries(board, PUBLISHED, "1.0.1", steady)[0]


@pytest.mark.parametrize("board", LIKE_MEASURED, ids=lambda board: board.board)
def test_the_second_level_is_found_where_it_was_published(board: MemoryBoard) -> None:
    assert find_second_level(board.random_read_nanoseconds) == board.l2_kibibytes


@pytest.mark.parametrize("board", LIKE_MEASURED, ids=lambda board: board.board)
def test_a_board_measured_as_published_has_the_published_entry(board: MemoryBoard) -> None:
    (memory,) = entries(measured(board)).memory
    assert memory.core == board.core
    assert memory.megabytes_per_second == board.megabytes_per_second
    assert memory.random_read_nanoseconds == pytest.approx(board.random_read_nanoseconds, abs=0.01)


def test_what_is_saved_reads_as_published_boards_do() -> None:
    more = {
        "coremark": MeasuredFigure([4000.0, 4891.0]),
        "networks": {"alexnet": MeasuredFigure([3e8, 2.5e8]), "squeezenet": MeasuredFigure([1e8], "heat")},
    }
    found = entries(measured(**more), steady=True)
    read = msgspec.convert(parse_yaml(write_entries(found), "saved.yaml"), PublishedBoards)
    assert read == found
    assert read.boards[0].milliseconds == {1: {"alexnet": 250.0}}
    assert read.boards[0].core.dram_megabytes_per_second == ROCK64.megabytes_per_second["write"]
    assert read.coremark[0].per_megahertz == pytest.approx(4891 / ROCK64.clock_megahertz)
    assert read.memory[0].source == "measured by csd-emu fidelity --on, 2026-11-27"
    joined = join_boards(PUBLISHED, read)
    assert joined.memory[-1] == read.memory[0]
    assert len(joined.boards) == len(PUBLISHED.boards) + 1


@pytest.mark.parametrize("name", DRAM_FIGURES)
def test_memory_whose_dram_throttled_is_not_saved(name: str) -> None:
    board = measured(throttled=(name,))
    assert entries(board, steady=True).memory == []
    assert len(entries(board).memory) == 1
    kept = entries(measured(throttled=("read", "read in 64 KiB")), steady=True).memory[0]
    assert set(kept.megabytes_per_second) == {"write", "copy"}
    assert 64 not in kept.random_read_nanoseconds


def test_memory_that_no_core_has_is_said_and_left_out() -> None:
    loops = {name: MeasuredFigure([1e6]) for name in measured().measurement.loops}
    flat = msgspec.structs.replace(measured(), measurement=BoardMeasurement(1400.0, None, None, loops))
    found, notes = make_entries(flat, PUBLISHED, "1.0.1", steady=False)
    assert found.memory == []
    assert "memory is not compared" in notes[0]


def compared(kind: str, name: str, board: str = "Lab") -> ComparedFigure:
    return ComparedFigure(kind, board, name, "x", 1.0, 1.1, -0.09, True, "source")


def test_throttled_figures_are_marked_and_out_of_the_medians() -> None:
    figures = [compared("bandwidth", "read"), compared("latency", "read in 64 KiB"), compared("bandwidth", "read", "B")]
    steady = mark_figures(figures, measured())
    assert [each.judged for each in steady] == [True] * 3
    assert [each.spread is None for each in steady] == [False, False, True]
    hot = mark_figures(figures, measured(throttled=("read",)))
    assert [(each.throttled, each.judged) for each in hot] == [("heat", False), ("", True), ("", True)]
    # DRAM's own figures are the parameters that the others are predicted with.
    for name in DRAM_FIGURES:
        all_hot = mark_figures(figures, measured(throttled=(name,)))
        assert [each.judged for each in all_hot] == [False, False, True]
        assert summarize(all_hot).median_errors.keys() == {"bandwidth"}
    more = {"coremark": MeasuredFigure([1.0], "heat"), "networks": {"alexnet": MeasuredFigure([1.0], "heat")}}
    others = [compared("coremark", "CoreMark"), compared("network", "alexnet")]
    assert all(each.throttled == "heat" for each in mark_figures(others, measured(**more)))


@given(st.floats(200, 3000))
def test_steps_are_predicted_by_cycles_at_the_boards_clock(megahertz: float) -> None:
    table = CalibrationStore(SHIPPED, core_model="cycles").require(ShippedCode("digits_cnn"), (1, 8, 8))
    steps = {"8": MeasuredFigure([0.2, 0.1], "heat"), "32": MeasuredFigure([0.4, 0.3])}
    found = BoardMeasurement(megahertz, None, None, measured().measurement.loops, steps=steps)
    board = MeasuredBoard("Lab", "2026-11-27", FACTS, 3, found)
    figures = mark_figures(list(compare_steps(board, table)), board)
    for figure, batch in zip(figures, steps, strict=True):
        seconds = table.step_seconds(int(batch))
        cycles = (seconds.forward + seconds.backward + seconds.update) * 1e9
        assert figure.predicted == pytest.approx(cycles / megahertz / 1000)
        assert figure.published == 1000 * min(steps[batch].values)
    assert [figure.throttled for figure in figures] == ["heat", ""]


def test_a_board_that_is_published_already_gets_a_name_of_its_own() -> None:
    assert name_board("Lab", PUBLISHED) == "Lab"
    assert name_board(ROCK64.board, PUBLISHED) == f"{ROCK64.board} (measured now)"
