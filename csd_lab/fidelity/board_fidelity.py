"""`csd-emu fidelity` without a drive: what the core model says of boards that others measured, beside their figures."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from csd_emu.cycles.plugin_build import CyclePlugin
from csd_emu.image import ImageStore
from csd_emu.profiles.calibration.cycle_counts import PhaseCycles
from csd_emu.profiles.core_sharing import speed_up
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_lab.fidelity.bare_machine import require_compiler
from csd_lab.fidelity.benchmark_programs import (
    LEAST_KIBIBYTES,
    measure_coremark,
    measure_memory,
    measure_networks,
    measure_strided_reads,
    ncnn_files,
    read_program,
)
from csd_lab.fidelity.board_measurement import MeasuredBoard
from csd_lab.fidelity.board_programs import read_name
from csd_lab.fidelity.published_boards import CoreMark, MemoryBoard, NetworkBoard, PublishedBoards, load_published

BANDWIDTH, LATENCY, NETWORK, THREADS, COREMARK = "bandwidth", "latency", "network", "threads", "coremark"
TRAINING = "training"
KIND_NAMES = {
    NETWORK: "networks of ncnn, one thread",
    THREADS: "networks of ncnn, speed-up by threads",
    COREMARK: "CoreMark per MHz",
    BANDWIDTH: "memory, read and copy",
    LATENCY: "memory, dependent reads",
    TRAINING: "training steps of torch, one thread",
}
# The board whose speed-ups say which part of ncnn's networks runs on one core.
FITTED_BOARD = "AXERA AX630C"


class ComparedFigure(msgspec.Struct, frozen=True):
    """One figure of one board.

    Attributes:
        kind: ``bandwidth`` or ``latency`` of memory, ``network`` (one thread), ``threads`` (speed-up), ``coremark``,
            ``training`` (of a board that was measured now).
        board, name, unit: what was measured.
        predicted: by the core model, counted.
        published: by the wall's clock, as a rule; of a board that was measured now what was measured.
        error: predicted / published - 1.
        judged: whether it counts; what parameters of the board were set from does not.
        source: of the published figure.
        counted: instructions, cycles and DRAM bytes, of a network.
        spread: of what was measured now: the distance of the repetitions' quartiles over their median.
        throttled: what says that the board throttled while this was measured; empty if nothing does.
    """

    kind: str
    board: str
    name: str
    unit: str
    predicted: float
    published: float
    error: float
    judged: bool
    source: str
    counted: PhaseCycles | None = None
    spread: float | None = None
    throttled: str = ""


class BoardFidelity(msgspec.Struct, frozen=True):
    """All figures that were compared; `median_errors` and `worst_errors` are of the judged ones of each kind.

    `measured` is the board that was measured now, if one was.
    """

    figures: list[ComparedFigure]
    median_errors: dict[str, float]
    worst_errors: dict[str, float]
    core_model: str
    predicted_clock: str
    published_clock: str
    measured: MeasuredBoard | None = None


def compare_boards(
    ncnn: Path | None,
    coremark: Sequence[Path],
    paths: Paths,
    progress: Progress,
    published: PublishedBoards | None = None,
) -> BoardFidelity:
    """Predict everything published that can be predicted here, and compare.

    Args:
        ncnn: folder with ncnn's networks (``NAME.param``) and packages; None leaves networks out.
        coremark: a CoreMark for 64-bit ARM Linux, behind its loader if it has one; empty leaves it out.
        paths: of csd-emu's files.
        progress: shown the stages.
        published: what to compare with; None for `published_boards.yaml`. `FITTED_BOARD` is among its boards.

    Raises:
        EnvironmentUnfit: there is no compiler, or no QEMU of a release that was tried.
        ConfigurationError: a program is missing in the folders that are named.
        CalibrationError: a program failed under the core model.
    """
    published = published or load_published()
    require_compiler()
    for path in coremark:  # what is missing is said before anything runs
        read_program(path)
    files = {} if ncnn is None else load_network_files(published, ncnn)
    figures = [*_compare_memory(published.memory, paths, progress)]
    if coremark:
        figures += _compare_coremark(published, coremark, paths, progress)
    if files:
        counted = {each.board: _count(each, published, files[each.board], paths, progress) for each in published.boards}
        (fitted,) = (board for board in published.boards if board.board == FITTED_BOARD)
        serial_share = find_serial_share(counted[FITTED_BOARD], fitted)
        for board in published.boards:
            figures += compare_networks(board, counted[board.board], serial_share)
    return summarize(figures)


def load_network_files(published: PublishedBoards, ncnn: Path) -> dict[str, dict[str, bytes]]:
    """Return board -> networks and ncnn's package, as the image runs them.

    Raises:
        ConfigurationError: the folder lacks one of them.
    """
    return {each.board: ncnn_files(each.networks, ncnn, each.ncnn) for each in published.boards}


def summarize(figures: Sequence[ComparedFigure], measured: MeasuredBoard | None = None) -> BoardFidelity:
    """Return the report of compared figures."""
    errors: dict[str, list[float]] = {}
    for figure in figures:
        if figure.judged:
            errors.setdefault(figure.kind, []).append(abs(figure.error))
    return BoardFidelity(
        figures=list(figures),
        median_errors={kind: statistics.median(values) for kind, values in errors.items()},
        worst_errors={kind: max(values) for kind, values in errors.items()},
        core_model="cycles",
        predicted_clock="counted",
        published_clock="wall",
        measured=measured,
    )


def _compare_memory(boards: Iterable[MemoryBoard], paths: Paths, progress: Progress) -> Iterable[ComparedFigure]:
    for board in boards:
        progress.stage(f"memory of {board.board}")
        plugin = CyclePlugin.build(paths.cycles, board.core)
        times = measure_memory(plugin, max(board.random_read_nanoseconds, default=LEAST_KIBIBYTES))
        for name, figure in board.megabytes_per_second.items():
            predicted = times.megabytes_per_second[name]
            yield _compared(BANDWIDTH, board, (name, "MB/s"), predicted, figure, judged=name != "write")
        for kibibytes, nanoseconds in board.random_read_nanoseconds.items():
            named = read_name(kibibytes), "ns"
            predicted, judged = times.random_read_nanoseconds[kibibytes], kibibytes <= board.l2_kibibytes
            yield _compared(LATENCY, board, named, predicted, nanoseconds, judged)
        sizes = board.strided_read_nanoseconds
        strided = measure_strided_reads(plugin, max(sizes)) if sizes else {}
        for kibibytes, nanoseconds in sizes.items():
            named = f"strided {read_name(kibibytes)}", "ns"
            yield _compared(LATENCY, board, named, strided[kibibytes], nanoseconds)


def _compare_coremark(
    published: PublishedBoards, programs: Sequence[Path], paths: Paths, progress: Progress
) -> Iterable[ComparedFigure]:
    progress.stage("CoreMark")
    plugin = CyclePlugin.build(paths.cycles, published.memory[0].core)
    score = measure_coremark(ImageStore(paths.images).ensure(progress), plugin, programs)
    for board in published.coremark:
        yield _compared(COREMARK, board, ("CoreMark", "per MHz"), score, board.per_megahertz)


def _count(
    board: NetworkBoard, published: PublishedBoards, files: dict[str, bytes], paths: Paths, progress: Progress
) -> dict[str, PhaseCycles]:
    """Return what one thread counts for each network that was measured on a board."""
    progress.stage(f"networks of {board.board}")
    plugin, image = CyclePlugin.build(paths.cycles, board.core), ImageStore(paths.images).ensure(progress)
    return measure_networks(image, plugin, {name: published.networks[name] for name in board.networks}, files)


def compare_networks(
    board: NetworkBoard, counted: Mapping[str, PhaseCycles], serial_share: float
) -> Iterable[ComparedFigure]:
    """Yield the times of a board's networks with one thread, and the speed-ups by more."""
    one = board.milliseconds[1]
    for name, figure in one.items():
        predicted = counted[name].cycles / board.clock_megahertz / 1000
        compared = _compared(NETWORK, board, (name, "ms"), predicted, figure)
        yield msgspec.structs.replace(compared, counted=counted[name])
    for threads, times in board.milliseconds.items():
        for name in times if threads > 1 else ():
            gain, judged = predict_speed_up(counted[name], threads, board, serial_share), board.board != FITTED_BOARD
            yield _compared(
                THREADS, board, (f"{name} by {threads} threads", "times"), gain, one[name] / times[name], judged
            )


def find_serial_share(counted: Mapping[str, PhaseCycles], board: NetworkBoard) -> float:
    """Return the part of a network's work that runs on one core, with which a board's median speed-up is as published.

    Args:
        counted: what each network counts on one core of it.
        board: whose speed-ups by most threads are taken.
    """
    (threads, times), one = max(board.milliseconds.items()), board.milliseconds[1]
    published = statistics.median(one[name] / times[name] for name in times)
    low, high = 0.0, 1.0
    for _ in range(50):
        share = (low + high) / 2
        median = statistics.median(predict_speed_up(counted[name], threads, board, share) for name in times)
        low, high = (share, high) if median > published else (low, share)
    return low


def predict_speed_up(counts: PhaseCycles, threads: int, board: NetworkBoard, serial_share: float) -> float:
    """Return how much faster so many threads are than one on a board, from what one thread counted."""
    seconds = counts.cycles / board.clock_megahertz / 1e6
    on_bus = counts.dram_bytes / board.all_cores_megabytes_per_second / 1e6
    return speed_up(on_bus / seconds, threads, serial_share)


def _compared(
    kind: str,
    board: MemoryBoard | NetworkBoard | CoreMark,
    named: tuple[str, str],
    predicted: float,
    published: float,
    judged: bool = True,
) -> ComparedFigure:
    error = predicted / published - 1
    return ComparedFigure(kind, board.board, *named, predicted, published, error, judged, board.source)
