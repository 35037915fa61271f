"""`csd-emu fidelity`: how far the emulation of a profile is from a real drive."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from csd_emu.profiles import get_profile
from csd_emu.profiles.calibration import CalibrationStore
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_lab.fidelity.profile_fit import FidelityRow, ScaleFit, SuggestedFigure, compare, fit_scales, suggest
from host.app.real_machine import RealMachine
from host.config.calibration_request import CalibrationRequest


class FidelityReport(msgspec.Struct, frozen=True):
    """`csd-emu fidelity`: what a real drive took, beside what the emulation of its profile says.

    `emulated_clock` and `drive_clock` name the clocks of the two; `fits` and `suggested` say which scales of the
    profile would make them agree best.
    """

    drive: str
    profile: str
    emulated_clock: str
    drive_clock: str
    rows: list[FidelityRow]
    fits: list[ScaleFit]
    suggested: list[SuggestedFigure]
    wall_seconds: float


def measure_fidelity(
    requests: Sequence[CalibrationRequest], drive: RealMachine, paths: Paths, progress: Progress
) -> FidelityReport:
    """Measure models on a real drive and compare them with the counted tables that emulation rests on.

    Raises:
        CalibrationError: a model has no counted table, or steps scatter too much.
        CsdError: as `RealMachine.measure`.
    """
    begin = time.monotonic()
    store, profile = CalibrationStore(paths.calibration), get_profile(drive.profile)
    emulated = [store.require(request.spec, request.input_shape) for request in requests]
    measured = [drive.measure(request, paths, progress) for request in requests]
    pairs = list(zip(emulated, measured, strict=True))
    rows = [
        row
        for request, (counted, wall) in zip(requests, pairs, strict=True)
        for row in compare(request.spec.name, counted, wall, profile)
    ]
    fits = fit_scales(pairs, profile)
    return FidelityReport(
        drive=drive.name,
        profile=drive.profile,
        emulated_clock=emulated[0].clock,
        drive_clock=measured[0].clock,
        rows=rows,
        fits=fits,
        suggested=suggest(fits, profile),
        wall_seconds=time.monotonic() - begin,
    )
