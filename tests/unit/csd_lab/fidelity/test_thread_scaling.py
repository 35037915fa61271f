import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.cycles.mark_file import CycleMark
from csd_emu.profiles.calibration.cycle_counts import PhaseCycles
from csd_emu.profiles.core_sharing import speed_up
from csd_lab.bench.bench_threads import THREADS, thread_figures
from csd_lab.fidelity.thread_scaling import (
    WHOLE,
    PhaseScaling,
    ThreadCounts,
    count_threads,
    middle_shares,
    scaling_of,
    serial_share,
)
from firmware_agent.common.errors import CalibrationError
from firmware_agent.common.frames.measure_frames import PhaseMark

PHASES = ("forward", "backward", "update")
STEPS = 3


def run_marks(cores: int, costs: dict[str, list[int]], begin: int) -> list[CycleMark]:
    """Marks of a warm-up and `STEPS` steps, each phase costing each core so many cycles, two for an instruction."""
    now = [begin] * cores
    marks: list[CycleMark] = []

    def execute(mark: PhaseMark, cycles: list[int]) -> None:
        for core, more in enumerate(cycles):
            now[core] += more
        marks.extend(
            CycleMark(mark, core, now[core] // 2, now[core] // 2, now[core], now[core]) for core in range(cores)
        )

    execute(PhaseMark.START, [0] * cores)
    for _ in range(1 + STEPS):
        execute(PhaseMark.IDLE, [999] * cores)
        for name in PHASES:
            execute(PhaseMark[name.upper()], costs[name] + [0] * (cores - len(costs[name])))
    execute(PhaseMark.ENCODE, [10] * cores)
    execute(PhaseMark.STOP, [0] * cores)
    return marks


def counts(threads: int, cycles: list[int]) -> ThreadCounts:
    return ThreadCounts(threads, {name: [PhaseCycles(c, c, c) for c in cycles] for name in (*PHASES, WHOLE)})


def test_each_run_is_told_apart_and_each_core_has_its_phases() -> None:
    one = {"forward": [1000], "backward": [4000], "update": [100]}
    two = {"forward": [600, 400], "backward": [2200, 2000], "update": [100, 0]}
    single, double = count_threads(run_marks(3, one, 0) + run_marks(3, two, 10**6), (1, 2))
    assert [phase.cycles for phase in single.phases["forward"]] == [1000]
    assert [phase.cycles for phase in double.phases["backward"]] == [2200, 2000]
    assert [phase.cycles for phase in double.phases[WHOLE]] == [2900, 2400]
    scaling = scaling_of(single, double)
    assert scaling["forward"] == PhaseScaling(pytest.approx(1 / 0.6), pytest.approx(0.2), 0.0, 0.0)
    assert scaling["backward"].extra_work == pytest.approx(0.05)
    assert scaling["update"].serial_share == pytest.approx(1)


def test_marks_of_other_runs_or_too_few_cores_are_refused() -> None:
    marks = run_marks(2, {name: [100, 100] for name in PHASES}, 0)
    with pytest.raises(CalibrationError, match="2 were asked for"):
        count_threads(marks, (1, 2))
    with pytest.raises(CalibrationError, match="1 were asked for"):
        count_threads(marks, (4,))
    with pytest.raises(CalibrationError, match="whole steps"):
        count_threads(marks[:12], (2,))
    with pytest.raises(CalibrationError, match="no cycles"):
        scaling_of(counts(1, [0]), counts(2, [1, 1]))


@given(share=st.floats(0, 1), threads=st.integers(2, 16))
def test_the_serial_share_is_that_of_amdahls_law(share: float, threads: int) -> None:
    assert serial_share(speed_up(0.0, threads, share), threads) == pytest.approx(share, abs=1e-9)


@given(cycles=st.lists(st.integers(1, 10**9), min_size=2, max_size=8), one=st.integers(1, 10**9))
def test_threads_gain_no_more_than_their_number_times_what_work_they_save(cycles: list[int], one: int) -> None:
    scaling = scaling_of(counts(1, [one]), counts(len(cycles), cycles))["forward"]
    assert scaling.gain == pytest.approx(one / max(cycles))
    assert scaling.gain * (1 + scaling.extra_work) <= len(cycles) * (1 + 1e-9)
    assert scaling.serial_share >= 0 or scaling.extra_work < 0


def test_the_middle_share_is_within_zero_and_one() -> None:
    shares = {str(s): {"forward": PhaseScaling(1.0, s, 0.0, 0.0)} for s in (-0.5, 0.3, 1.5)}
    assert middle_shares(shares) == {"forward": (0.0, 0.3, 1.0)}


def test_the_benchs_figures_follow_from_its_counts() -> None:
    perfect = {n: [1200 // n] * n for n in THREADS}
    figures, scaling = thread_figures({"net": [counts(n, cycles) for n, cycles in perfect.items()]})
    assert figures["forward_serial_median"] == pytest.approx(0)
    assert figures["two_threads_error"] == pytest.approx(0)
    assert scaling["net"][4][WHOLE].gain == pytest.approx(4)
    half = {1: [1000], 2: [750, 250], 4: [625, 125, 125, 125]}
    figures, _ = thread_figures({"net": [counts(n, cycles) for n, cycles in half.items()]})
    assert figures["backward_serial_max"] == pytest.approx(0.5)
    assert figures["two_threads_error"] == pytest.approx(0)
    assert figures["extra_work"] == pytest.approx(0)
