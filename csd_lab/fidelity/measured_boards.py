"""A board that was measured now beside published ones: its entries in their form, and how its figures are marked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import yaml

from csd_emu.cycles.parameters import RANGES, CoreParameters
from csd_emu.profiles.calibration.calibration_table import CalibrationTable
from csd_emu.profiles.calibration.table_fit import spread_of
from csd_lab.fidelity.benchmark_programs import LEAST_KIBIBYTES, LOOPS, RANDOM_READ, memory_times
from csd_lab.fidelity.board_fidelity import BANDWIDTH, COREMARK, LATENCY, NETWORK, TRAINING, ComparedFigure
from csd_lab.fidelity.board_measurement import BoardMeasurement, MeasuredBoard, MeasuredFigure
from csd_lab.fidelity.board_programs import read_name
from csd_lab.fidelity.published_boards import (
    FITTED_KIBIBYTES,
    CoreMark,
    MemoryBoard,
    NetworkBoard,
    PublishedBoards,
)
from firmware_agent.common.errors import ConfigurationError

# The least memory whose random reads are compared: the first level has all of what is smaller.
_LEAST_COMPARED, _LEAST_NANOSECONDS = 64, 0.01
# The second level has what is read in less than so much of DRAM's time.
_SHARE_OF_DRAM = 1 / 3
# What the parameters of a board's DRAM are set from.
DRAM_FIGURES = ("write", read_name(FITTED_KIBIBYTES))


def find_second_level(random_read_nanoseconds: Mapping[int, float]) -> int:
    """Return the size of the second level in KiB, from random reads: the largest memory that is read much faster.

    Args:
        random_read_nanoseconds: KiB -> beyond a read in the first level; `FITTED_KIBIBYTES` among them.
    """
    most = random_read_nanoseconds[FITTED_KIBIBYTES] * _SHARE_OF_DRAM
    least, largest = RANGES["l2_kibibytes"]
    fast = [size for size, nanoseconds in random_read_nanoseconds.items() if nanoseconds < most and size <= largest]
    return max(least, *fast) if fast else least


def make_entries(
    measured: MeasuredBoard, published: PublishedBoards, release: str, steady: bool
) -> tuple[PublishedBoards, list[str]]:
    """Return a measured board in the form of published ones, and a line about what cannot be compared.

    Args:
        measured: the board.
        published: its networks' shapes are taken.
        release: of ncnn.
        steady: whether figures that were measured while it throttled are left out.
    """
    found, notes = measured.measurement, []
    memory: MemoryBoard | None
    core: CoreParameters | None
    try:
        memory = _memory(measured, steady)
        core = None if memory is None else memory.core
    except ConfigurationError as error:
        memory, core = None, None
        notes.append(f"memory is not compared: no core of the model has its figures ({error})")
    networks = [_networks(measured, core, release, steady)]
    networks = [each for each in networks if each.milliseconds[1]]
    marks = []
    if found.coremark is not None and not (steady and found.coremark.throttled):
        marks.append(CoreMark(measured.board, measured.source, max(found.coremark.values) / found.megahertz))
    shapes = {name: published.networks[name] for each in networks for name in each.networks}
    return PublishedBoards(shapes, networks, [] if memory is None else [memory], marks), notes


def _networks(measured: MeasuredBoard, core: CoreParameters | None, release: str, steady: bool) -> NetworkBoard:
    """Return the times of networks, with DRAM as it was measured, or else the model's own."""
    times = measured.measurement.networks
    memory = core or CoreParameters()
    parameters = {name: getattr(memory, name) for name in ("dram_nanoseconds", "dram_megabytes_per_second")}
    return NetworkBoard(
        board=measured.board,
        source=measured.source,
        ncnn=release,
        clock_megahertz=round(measured.measurement.megahertz),
        memory_source=f"measured with it: {' and '.join(DRAM_FIGURES)}" if core else "not measured: the default",
        memory=parameters if core else {},
        all_cores_megabytes_per_second=memory.dram_megabytes_per_second,
        all_cores_source="assumed: what one core writes (memory_source)",
        milliseconds={
            1: {
                name: round(min(figure.values) / 1e6, 3)
                for name, figure in times.items()
                if not (steady and figure.throttled)
            }
        },
    )


def _memory(measured: MeasuredBoard, steady: bool) -> MemoryBoard | None:
    """Return the board's memory; None if DRAM's own figures are to be left out.

    Raises:
        ConfigurationError: there is no DRAM in its figures.
    """
    loops = measured.measurement.loops
    if steady and any(loops[name].throttled for name in DRAM_FIGURES):
        return None
    best = {name: min(figure.values) for name, figure in loops.items()}
    reads = [nanoseconds for name, nanoseconds in best.items() if name not in LOOPS.values()]
    bulk = [(mark, best[name]) for mark, name in LOOPS.items()]
    times = memory_times([*bulk, *((RANDOM_READ, nanoseconds) for nanoseconds in reads)])
    if times.random_read_nanoseconds[FITTED_KIBIBYTES] <= 0:
        raise ConfigurationError(f"{DRAM_FIGURES[1]} takes no longer than in {LEAST_KIBIBYTES} KiB")
    kept = [name for name, figure in loops.items() if not (steady and figure.throttled)]
    latencies = {
        size: round(nanoseconds, 2)
        for size, nanoseconds in times.random_read_nanoseconds.items()
        if size >= _LEAST_COMPARED and nanoseconds >= _LEAST_NANOSECONDS and read_name(size) in kept
    }
    return MemoryBoard(
        board=measured.board,
        source=measured.source,
        clock_megahertz=round(measured.measurement.megahertz),
        l2_kibibytes=find_second_level(times.random_read_nanoseconds),
        megabytes_per_second={name: round(rate) for name, rate in times.megabytes_per_second.items() if name in kept},
        random_read_nanoseconds=latencies,
    )


def join_boards(published: PublishedBoards, entries: PublishedBoards) -> PublishedBoards:
    """Return published boards with the entries of another behind them."""
    return PublishedBoards(
        published.networks,
        [*published.boards, *entries.boards],
        [*published.memory, *entries.memory],
        [*published.coremark, *entries.coremark],
    )


def name_board(model: str, published: PublishedBoards) -> str:
    """Return a name for a measured board that no published one has."""
    taken = {each.board for each in published.boards} | {each.board for each in published.memory}
    taken |= {each.board for each in published.coremark}
    name = model
    while name in taken:
        name = f"{name} (measured now)"
    return name


def compare_steps(measured: MeasuredBoard, table: CalibrationTable) -> Iterable[ComparedFigure]:
    """Yield the training steps of a board beside those of a table in cycles, at the board's clock.

    The table's cycles were counted at 1 GHz with the model's own DRAM, whatever the board's.

    Args:
        measured: the board.
        table: `CalibrationTable.in_cycles`.
    """
    for batch, figure in measured.measurement.steps.items():
        seconds = table.step_seconds(int(batch))
        milliseconds = (seconds.forward + seconds.backward + seconds.update) * 1e6 / measured.measurement.megahertz
        name, seen = f"{table.model}, step of {batch}", min(figure.values) * 1000
        error, source = milliseconds / seen - 1, measured.source
        counted = int(batch) in table.batches  # the table interpolates others
        yield ComparedFigure(TRAINING, measured.board, name, "ms", milliseconds, seen, error, counted, source)


def mark_figures(figures: Sequence[ComparedFigure], measured: MeasuredBoard) -> list[ComparedFigure]:
    """Return the figures, with spread and throttling of those that were measured now; throttled ones are not judged."""
    return [_mark(each, measured.measurement) if each.board == measured.board else each for each in figures]


def _mark(compared: ComparedFigure, found: BoardMeasurement) -> ComparedFigure:
    figure = _figure_of(compared, found)
    throttled = figure.throttled
    if compared.kind in (BANDWIDTH, LATENCY):
        # The prediction rests on DRAM's own figures.
        throttled = next((reason for name in DRAM_FIGURES if (reason := found.loops[name].throttled)), throttled)
    return msgspec.structs.replace(
        compared, spread=spread_of(figure.values), throttled=throttled, judged=compared.judged and not throttled
    )


def _figure_of(compared: ComparedFigure, found: BoardMeasurement) -> MeasuredFigure:
    if compared.kind == NETWORK:
        return found.networks[compared.name]
    if compared.kind == COREMARK and found.coremark is not None:
        return found.coremark
    if compared.kind == TRAINING:
        return found.steps[compared.name.rpartition(" ")[2]]
    return found.loops[compared.name]


def write_entries(entries: PublishedBoards) -> str:
    """Return the text of a file of entries."""
    return yaml.safe_dump(msgspec.to_builtins(entries, str_keys=False), sort_keys=False, allow_unicode=True, width=120)
