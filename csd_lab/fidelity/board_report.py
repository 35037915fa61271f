"""`csd-emu fidelity --on`: a board that is measured now over SSH, beside the core model and published boards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from csd_emu.cycles.parameters import CoreParameters
from csd_emu.cycles.plugin_build import CyclePlugin
from csd_emu.engines.remote.inventory import DriveEntry
from csd_emu.engines.remote.shell import OpenShell, open_shell
from csd_emu.profiles.calibration import CalibrationStore, CalibrationTable
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_lab.fidelity.bare_machine import require_compiler
from csd_lab.fidelity.benchmark_programs import read_program
from csd_lab.fidelity.board_fidelity import BoardFidelity, compare_boards, load_network_files, summarize
from csd_lab.fidelity.board_measurement import MeasuredBoard, measure_board
from csd_lab.fidelity.board_programs import WantedPrograms
from csd_lab.fidelity.board_session import BoardSession
from csd_lab.fidelity.measured_boards import (
    compare_steps,
    join_boards,
    make_entries,
    mark_figures,
    name_board,
    write_entries,
)
from csd_lab.fidelity.published_boards import PublishedBoards, load_published
from firmware_agent.common.atomic_files import replace_file
from firmware_agent.common.errors import CalibrationError, ConfigurationError
from host.config.calibration_request import CalibrationRequest


@dataclass(frozen=True)
class BoardRequest:
    """What to measure on a board.

    Attributes:
        board: how to reach it.
        repetitions: of each program, one or more.
        ncnn: folder of networks and packages; None for none.
        coremark: CoreMark, behind its loader if it has one; empty for none.
        training: model and batch sizes.
        save: where the board's entries are written; None for nowhere.
    """

    board: DriveEntry
    repetitions: int
    ncnn: Path | None
    coremark: Sequence[Path]
    training: CalibrationRequest
    save: Path | None = None


def compare_board(
    request: BoardRequest, paths: Paths, progress: Progress, connect: OpenShell = open_shell
) -> BoardFidelity:
    """Measure a board, and compare the core model with it and with all published ones.

    Args:
        request: what to measure.
        paths: of csd-emu's files.
        progress: shown the stages.
        connect: opens a shell on the board.

    Raises:
        ConfigurationError: a program is missing, or the file to save cannot be written.
        EnvironmentUnfit: there is no compiler, or no QEMU of a release that was tried.
        DriveUnreachable: the board cannot be reached, or no longer; `HostKeyRefused` if its key is not the known one.
        DriveUnfit: csd-emu's programs do not run there.
        CalibrationError: a program failed under the core model.
    """
    published = load_published()
    _check(request, published, paths)
    table, notes = _table(request.training, paths)
    release = max((each.ncnn for each in published.boards), key=lambda text: [int(word) for word in text.split(".")])
    wanted = WantedPrograms(
        coremark=request.coremark,
        ncnn=request.ncnn,
        networks=published.networks,
        release=release,
        training=None if table is None else request.training,
        torch="" if table is None else table.versions.torch,
    )
    progress.stage(f"connect to {request.board.host}")
    with BoardSession(request.board, connect) as session:
        found = measure_board(session, wanted, request.repetitions, progress)
        name, facts = name_board(session.facts.model, published), session.facts
    measured = MeasuredBoard(name, datetime.now(UTC).date().isoformat(), facts, facts.core, found)
    entries, more = make_entries(measured, published, release, steady=False)
    compared = compare_boards(request.ncnn, request.coremark, paths, progress, join_boards(published, entries))
    figures = [*compared.figures, *(() if table is None else compare_steps(measured, table))]
    if request.save is not None:
        more += save_steady(make_entries(measured, published, release, steady=True)[0], request.save)
    found = msgspec.structs.replace(found, notes=[*notes, *found.notes, *more])
    return summarize(mark_figures(figures, measured), msgspec.structs.replace(measured, measurement=found))


def save_steady(entries: PublishedBoards, path: Path) -> list[str]:
    """Write a board's entries to a file, in one step; return what came of it."""
    if not (entries.boards or entries.memory or entries.coremark):
        return [f"{path} was not written: no entry's figures were steady; cool the board and try again"]
    try:
        replace_file(path, write_entries(entries).encode())
    except OSError as error:  # what was measured is worth more
        return [f"{path} could not be written ({error.strerror}); --json has all that was measured"]
    return [f"{path} has what was steady, in the form of published boards"]


def _check(request: BoardRequest, published: PublishedBoards, paths: Paths) -> None:
    """Return if all is there that the comparison needs, before a board is asked to work."""
    require_compiler()
    CyclePlugin.build(paths.cycles, CoreParameters())
    if request.ncnn is not None:
        load_network_files(published, request.ncnn)
    for path in request.coremark:
        read_program(path)
    save = request.save
    if save is not None and (save.is_dir() or not os.access(save.absolute().parent, os.W_OK)):
        raise ConfigurationError(f"--save: {save} cannot be written; name a file in a folder of yours")


def _table(request: CalibrationRequest, paths: Paths) -> tuple[CalibrationTable | None, list[str]]:
    """Return the table in cycles that training steps are compared with; None and why if there is none."""
    store = CalibrationStore(paths.calibration, core_model="cycles")
    try:
        return store.require(request.spec, request.input_shape), []
    except CalibrationError as error:
        return None, [f"training steps are not measured: {error}"]
