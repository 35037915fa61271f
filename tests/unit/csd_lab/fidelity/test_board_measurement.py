from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from csd_emu.util.progress import Silent
from csd_lab.fidelity import board_programs
from csd_lab.fidelity.board_facts import BoardFacts
from csd_lab.fidelity.board_measurement import (
    COOL_LOOKS,
    COOL_SECONDS,
    BoardMeasurement,
    clock_notes,
    figures_of,
    is_cool,
    measure_board,
)
from csd_lab.fidelity.board_programs import WantedPrograms
from csd_lab.fidelity.board_runs import BoardSample, Repetition
from firmware_agent.common.errors import DriveUnfit

# Of the additions at the clock that the samples tell, and of all other loops.
NANOSECONDS = 4_000_000 / 1.4
MARKS = [5, 1, 2, 3, *[4] * 12]
WANTED = WantedPrograms([], None, {}, "1.0.1", None, "")
COLD = BoardSample("before", 1_400_000, 1_400_000, 0, 40.0)
STEADY = (COLD, BoardSample("during", 1_400_000), BoardSample("after", 1_400_000, 1_400_000, 0, 41.0))
HOT = (COLD, BoardSample("during", 1_400_000), BoardSample("during", 1_000_000, 1_400_000, 0, 85.0))


def loops(factor: float = 1.0) -> str:
    return "".join(f"{mark} {round(NANOSECONDS * factor)}\n" for mark in MARKS)


class FakeSession:
    """A board whose runs are given, one after the other; it is as hot as `celsius` says, look by look."""

    where = "board lab"
    facts = BoardFacts("Lab", "6.1", [3], 0, None, "", "", "there is no python3")

    def __init__(self, runs: Sequence[list[Repetition]], celsius: Sequence[float | None] = (40.0,)) -> None:
        self._runs = iter(runs)
        self._celsius: Iterator[float | None] = iter([*celsius, *[celsius[-1]] * 100])
        self.files: Mapping[str, bytes] = {}

    def upload(self, files: Mapping[str, bytes]) -> None:
        self.files = files

    def run(self, name: str, command: str, repetitions: int, seconds: float) -> list[Repetition]:
        return next(self._runs)

    def sample(self) -> BoardSample:
        return BoardSample("before", celsius=next(self._celsius))


@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_programs, "compile_guest", lambda source, constants: b"program")


def run(*factors: float, samples: tuple[BoardSample, ...] = STEADY) -> list[Repetition]:
    return [Repetition(loops(factor), samples) for factor in factors]


def measure(session: Any, waits: list[float]) -> BoardMeasurement:
    return measure_board(session, WANTED, 2, Silent(), waits.append)


def test_a_steady_board_is_measured_once_and_the_best_clock_counts() -> None:
    session, waits = FakeSession([run(1.0, 0.99)]), list[float]()
    found = measure(session, waits)
    assert (waits, found.notes, session.files) == ([], [], {"memory_loops": b"program"})
    assert found.megahertz == pytest.approx(1400 / 0.99)
    assert (found.reported_megahertz, found.most_celsius) == (1400.0, 41.0)
    assert "clock" not in found.loops
    assert found.loops["read"].values == [round(NANOSECONDS), round(NANOSECONDS * 0.99)]
    assert not any(figure.throttled for figure in found.loops.values())


def test_a_board_that_throttled_is_measured_again_when_it_is_cool() -> None:
    session, waits = FakeSession([run(1, 1, samples=HOT), run(1.01, 1.0)], [40.0, 80.0, 60.0, 42.5]), list[float]()
    found = measure(session, waits)
    assert waits == [COOL_SECONDS] * 3
    assert found.loops["read"].values == [round(NANOSECONDS * 1.01), round(NANOSECONDS)]
    assert not any(figure.throttled for figure in found.loops.values())
    assert "clock fell from 1400 to 1000 MHz; measured again after 15 s, the second try was steady" in found.notes[0]


def test_a_board_that_throttles_twice_is_marked_and_the_wait_is_bounded() -> None:
    session, waits = FakeSession([run(1, 1, samples=HOT)] * 2, [40.0, 90.0]), list[float]()
    found = measure(session, waits)
    assert waits == [COOL_SECONDS] * COOL_LOOKS
    assert all("clock fell" in figure.throttled for figure in found.loops.values())
    assert "16 of 16 figures are marked" in found.notes[0]


def test_a_board_that_stays_hot_is_not_taken_for_a_slow_one() -> None:
    low = (BoardSample("before", 1_000_000), BoardSample("during", 1_000_000), BoardSample("after", 1_000_000))
    found = measure(FakeSession([run(1, 1, samples=HOT), run(1.4, 1.4, samples=low)]), list[float]())
    assert all("clock fell from 1400 to 1000 MHz" in figure.throttled for figure in found.loops.values())


def test_a_loop_that_drifts_marks_itself_alone() -> None:
    slower = loops().splitlines()
    slower[1] = f"1 {round(NANOSECONDS * 1.1)}"
    drifting = [Repetition(loops(), STEADY), Repetition("\n".join(slower), STEADY)]
    found = measure(FakeSession([drifting] * 2), list[float]())
    assert [name for name, figure in found.loops.items() if figure.throttled] == ["read"]
    assert "by +10%" in found.loops["read"].throttled


def test_a_board_that_tells_no_temperature_is_waited_for_in_full() -> None:
    assert is_cool(BoardSample("before", celsius=40.0), BoardSample("before", celsius=43.0))
    assert not is_cool(BoardSample("before", celsius=40.0), BoardSample("before", celsius=43.5))
    assert not is_cool(BoardSample("before"), BoardSample("before", celsius=1.0))
    assert not is_cool(BoardSample("before", celsius=40.0), BoardSample("before"))


def test_another_program_s_words_are_refused() -> None:
    with pytest.raises(DriveUnfit, match="its output cannot be read"):
        measure(FakeSession([[Repetition("1 2 3", STEADY)] * 2]), list[float]())
    with pytest.raises(DriveUnfit, match="its output cannot be read"):
        figures_of("x", [Repetition("a", ()), Repetition("b", ())], lambda output: {output: 1.0})


def test_a_clock_that_lies_or_is_held_down_is_said() -> None:
    (lies,) = clock_notes(1400, 2000.0, [])
    assert "the system says 2000 MHz" in lies
    (held,) = clock_notes(1000, 1000.0, [BoardSample("during", 1_000_000, 1_400_000)])
    assert "at most 1400 MHz" in held
    assert clock_notes(1000, None, [BoardSample("during")]) == []
