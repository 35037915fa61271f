"""What a board takes for the programs that the core model is compared by: one Cortex-A53, by the wall's clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from csd_emu.util.progress import Progress
from csd_lab.fidelity.board_facts import BoardFacts
from csd_lab.fidelity.board_programs import (
    ADDITIONS,
    COREMARK_PROGRAM,
    LOOPS_PROGRAM,
    NETWORK_PROGRAM,
    STEP_PROGRAM,
    BoardProgram,
    Read,
    WantedPrograms,
    choose_programs,
)
from csd_lab.fidelity.board_runs import (
    BoardSample,
    Repetition,
    find_drift,
    find_throttling,
    hottest,
    reported_megahertz,
    running_clocks,
)
from csd_lab.fidelity.board_session import BoardSession
from firmware_agent.common.errors import DriveUnfit

# A board that throttled is looked at so often, so many seconds apart, until it is at most so much warmer than at first.
COOL_LOOKS, COOL_SECONDS, COOL_DEGREES = 24, 5.0, 3.0


class MeasuredFigure(msgspec.Struct, frozen=True):
    """One figure of a board.

    Attributes:
        values: of the repetitions, in order; positive.
        throttled: what says that the board throttled meanwhile; empty if nothing does.
    """

    values: list[float]
    throttled: str = ""


class BoardMeasurement(msgspec.Struct, frozen=True):
    """What was measured on a board; its clock is ``wall``.

    Attributes:
        megahertz: of the core, from additions that wait for each other; the best repetition's.
        reported_megahertz: what the system said; None if it does not say.
        most_celsius: of the hottest sensor; None if none is known.
        loops: name of a loop over memory (or ``read in N KiB``) -> nanoseconds.
        coremark: iterations per second; None if it was not run.
        networks: name -> nanoseconds.
        steps: batch size -> seconds of the median step of each repetition.
        notes: what could not be measured, and what else to know; one line each.
    """

    megahertz: float
    reported_megahertz: float | None
    most_celsius: float | None
    loops: dict[str, MeasuredFigure]
    coremark: MeasuredFigure | None = None
    networks: dict[str, MeasuredFigure] = {}
    steps: dict[str, MeasuredFigure] = {}
    notes: list[str] = []


class MeasuredBoard(msgspec.Struct, frozen=True):
    """A board that was measured now.

    Attributes:
        board: its name.
        date: of the measurement, ISO 8601.
        facts: what it is.
        core: that was measured.
        measurement: what was measured.
    """

    board: str
    date: str
    facts: BoardFacts
    core: int
    measurement: BoardMeasurement

    @property
    def source(self) -> str:
        """As `published_boards.yaml` has it."""
        return f"measured by csd-emu fidelity --on, {self.date}"


@dataclass
class _Measuring:
    """A measurement that is under way.

    Attributes:
        begin: clock and heat before it.
        highest_khz: of the clocks while programs ran.
    """

    session: BoardSession
    repetitions: int
    progress: Progress
    wait: Callable[[float], object]
    begin: BoardSample
    samples: list[BoardSample] = field(default_factory=list)
    highest_khz: int = 0
    notes: list[str] = field(default_factory=list)

    def measure_each(self, programs: Sequence[BoardProgram]) -> dict[str, dict[str, MeasuredFigure]]:
        """Return the figures of each program; one that fails, but for the loops over memory, leaves a note."""
        found = {}
        for program in programs:
            try:
                found[program.name] = self.measure(program)
            except DriveUnfit as error:
                if program.name == LOOPS_PROGRAM:
                    raise
                self.notes.append(str(error))
        return found

    def measure(self, program: BoardProgram) -> dict[str, MeasuredFigure]:
        """Return the figures of a program; of a board that throttled those of a second try, after it cooled."""
        self.progress.stage(f"{self.session.where}: {program.name}")
        figures = self._try(program)
        reasons = {figure.throttled for figure in figures.values()} - {""}
        if not reasons:
            return figures
        self.progress.stage(f"{self.session.where} throttled: waits until it is cool")
        waited = self._cool()
        self.progress.stage(f"{self.session.where}: {program.name}, again")
        figures = self._try(program)
        left = sum(bool(figure.throttled) for figure in figures.values())
        kept = f"{left} of {len(figures)} figures are marked" if left else "the second try was steady"
        self.notes.append(f"{program.name}: {sorted(reasons)[0]}; measured again after {waited:.0f} s, {kept}")
        return figures

    def _try(self, program: BoardProgram) -> dict[str, MeasuredFigure]:
        runs = self.session.run(program.name, program.command, self.repetitions, program.seconds)
        samples = [sample for run in runs for sample in run.samples]
        throttled = find_throttling(samples, self.highest_khz)
        self.samples += samples
        self.highest_khz = max(self.highest_khz, *running_clocks(samples), 0)
        return figures_of(f"{self.session.where}: {program.name}", runs, program.read, throttled)

    def _cool(self) -> float:
        """Wait until the board is as cool as at the beginning, two minutes at most; return the seconds."""
        for look in range(COOL_LOOKS):
            self.wait(COOL_SECONDS)
            if is_cool(self.begin, self.session.sample()):
                return (look + 1) * COOL_SECONDS
        return COOL_LOOKS * COOL_SECONDS


def is_cool(begin: BoardSample, now: BoardSample) -> bool:
    """Return whether a board is about as cool as at the beginning; of one that does not say, never."""
    return begin.celsius is not None and now.celsius is not None and now.celsius <= begin.celsius + COOL_DEGREES


def figures_of(where: str, runs: Sequence[Repetition], read: Read, throttled: str = "") -> dict[str, MeasuredFigure]:
    """Return the figures of a program's repetitions, with what says that the board throttled.

    Args:
        where: names board and program in errors.
        runs: one or more.
        read: what a repetition wrote.
        throttled: what the samples say of all figures.

    Raises:
        DriveUnfit: a repetition wrote something else than such a program does.
    """
    try:
        read_ones = [read(run.output) for run in runs]
        values = {name: [one[name] for one in read_ones] for name in read_ones[0]}
    except (ValueError, KeyError) as error:
        raise DriveUnfit(f"{where}: its output cannot be read ({error}); run it there by hand") from error
    return {name: MeasuredFigure(each, throttled or find_drift(each)) for name, each in values.items()}


def measure_board(
    session: BoardSession,
    wanted: WantedPrograms,
    repetitions: int,
    progress: Progress,
    wait: Callable[[float], object] | None = None,
) -> BoardMeasurement:
    """Measure all that can be measured on a board.

    Args:
        session: open.
        wanted: what to run.
        repetitions: of each program, one or more.
        progress: shown the stages.
        wait: waits so many seconds; None for a wait by the wall's clock.

    Raises:
        ConfigurationError: a program that the user named cannot be read; nothing was measured.
        EnvironmentUnfit: there is no compiler for ARM.
        DriveUnfit: the loops over memory failed there; of another program that fails a note says so.
        DriveUnreachable: the connection broke, or it took too long.
    """
    programs, notes = choose_programs(session.facts, wanted)
    progress.stage(f"{session.where}: copy programs")
    session.upload({path: content for program in programs for path, content in program.files.items()})
    wait = wait or threading.Event().wait
    running = _Measuring(session, repetitions, progress, wait, session.sample(), notes=notes)
    found = running.measure_each(programs)
    loops = found[LOOPS_PROGRAM]
    megahertz, told = ADDITIONS / min(loops.pop("clock").values) * 1000, reported_megahertz(running.samples)
    notes += clock_notes(megahertz, told, running.samples)
    return BoardMeasurement(
        megahertz=megahertz,
        reported_megahertz=told,
        most_celsius=hottest(running.samples),
        loops=loops,
        coremark=found.get(COREMARK_PROGRAM, {}).get(COREMARK_PROGRAM),
        networks=found.get(NETWORK_PROGRAM, {}),
        steps=found.get(STEP_PROGRAM, {}),
        notes=notes,
    )


def clock_notes(megahertz: float, told: float | None, samples: Sequence[BoardSample]) -> list[str]:
    """Return what there is to say of a clock that was measured, beside the one that the system tells."""
    notes = []
    most = max((each.most_khz for each in samples if each.most_khz is not None), default=None)
    if told is not None and abs(megahertz / told - 1) > 0.02:
        notes.append(f"the system says {told:.0f} MHz and additions take as long as at {megahertz:.0f}: those count")
    if told is not None and most is not None and told < most / 1000 * 0.98:
        notes.append(f"its clock is at most {most / 1000:.0f} MHz and was {told:.0f}; see its governor")
    return notes
