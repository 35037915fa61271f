"""Difference between emulation and a real drive, and the figures of the profile that would make them agree."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec
import numpy as np

from csd_emu.profiles.calibration.calibration_table import CalibrationTable
from csd_emu.profiles.calibration.table_fit import spread_of
from csd_emu.profiles.profile import PARALLEL_PHASES, REFERENCE_HERTZ, Profile
from firmware_agent.common.frames.frame_fields import PhaseSeconds

# Phases that a profile scales alike: kernels over all cores, and what one core does alone.
PARALLEL, SERIAL = "parallel", "serial"


class FidelityRow(msgspec.Struct, frozen=True):
    """One model at one batch size.

    Attributes:
        model: its name.
        batch_size: samples per step.
        emulated_seconds: of a step, counted, times the profile's scales.
        drive_seconds: of the median step on the drive, by its own clock.
        ratio: drive / emulated.
        spread: of the drive's steps (see `spread_of`).
        steps: that were measured on the drive.
        extrapolated: whether the counted table has no row of such a batch.
    """

    model: str
    batch_size: int
    emulated_seconds: float
    drive_seconds: float
    ratio: float
    spread: float
    steps: int
    extrapolated: bool


class ScaleFit(msgspec.Struct, frozen=True):
    """A phase scale that would make emulation agree with the drive as well as one number can.

    Attributes:
        kind: ``parallel`` (forward, backward, update) or ``serial`` (encode).
        profile_scale: seconds of the profile's drive over seconds of the reference core, as it is now; of ``parallel``
            the mean over its phases.
        fitted_scale: the same, of the drive that was measured.
        worst_error: largest relative difference between drive and emulation that is left with the fitted scale.
    """

    kind: str
    profile_scale: float
    fitted_scale: float
    worst_error: float


class SuggestedFigure(msgspec.Struct, frozen=True):
    """A figure of the profile as it is, and as it would have to be."""

    name: str
    now: float
    fitted: float


def compare(model: str, emulated: CalibrationTable, drive: CalibrationTable, profile: Profile) -> list[FidelityRow]:
    """Return one row per batch size that was measured on the drive.

    Args:
        model: its name, for people.
        emulated: table of the reference core, counted.
        drive: table of the drive, wall.
        profile: of the drive, which scales the first.
    """
    rows = []
    for row in drive.rows:
        expected = emulated.device_seconds(row.batch_size, profile).total
        seen = row.seconds.total
        rows.append(
            FidelityRow(
                model=model,
                batch_size=row.batch_size,
                emulated_seconds=expected,
                drive_seconds=seen,
                ratio=seen / expected,
                spread=spread_of([step.total for step in row.steps]),
                steps=len(row.steps),
                extrapolated=row.batch_size not in emulated.batches,
            )
        )
    return rows


def fit_scales(pairs: Sequence[tuple[CalibrationTable, CalibrationTable]], profile: Profile) -> list[ScaleFit]:
    """Return the scales that fit best, over all models and batches.

    A scale s is chosen so that the sum of (s r / d - 1)^2 is smallest, r being seconds of the reference core and d
    those of the drive: relative errors count alike, whatever the size of the step.

    Args:
        pairs: (emulated, drive) tables, at least one.
        profile: whose scales they are compared with.
    """
    kernels = [
        (_kernels(emulated.step_seconds(row.batch_size)), _kernels(row.seconds))
        for emulated, drive in pairs
        for row in drive.rows
    ]
    copies = [(emulated.encode_seconds_median, drive.encode_seconds_median) for emulated, drive in pairs]
    parallel = statistics.fmean(profile.scale(phase) for phase in sorted(PARALLEL_PHASES))
    return [_fit(PARALLEL, kernels, parallel), _fit(SERIAL, copies, profile.scale("encode"))]


def suggest(fits: Sequence[ScaleFit], profile: Profile) -> list[SuggestedFigure]:
    """Return the profile's figures that would give the fitted scales, clock and cores being what they are.

    `Profile.scale` the other way round: instructions per cycle from serial work, parallel efficiency from what the
    kernels gain beyond that. Efficiency above 1 or below one core's share says that the model of the profile does not
    hold for this drive.
    """
    scales = {fit.kind: fit.fitted_scale for fit in fits}
    per_cycle = REFERENCE_HERTZ / (profile.clock_hertz.value * scales[SERIAL])
    efficiency = scales[SERIAL] / scales[PARALLEL] / profile.cores.value
    return [
        SuggestedFigure("instructions_per_cycle", profile.instructions_per_cycle.value, per_cycle),
        SuggestedFigure("parallel_efficiency", profile.parallel_efficiency.value, efficiency),
    ]


def _kernels(seconds: PhaseSeconds) -> float:
    """Return the seconds of what a drive does on all cores: the host's part of a model that is cut is none of it."""
    return sum(float(getattr(seconds, phase)) for phase in PARALLEL_PHASES & set(PhaseSeconds.__struct_fields__))


def _fit(kind: str, pairs: Sequence[tuple[float, float]], now: float) -> ScaleFit:
    shares = np.array([reference / drive for reference, drive in pairs if drive > 0 and reference > 0])
    if not len(shares):
        return ScaleFit(kind, now, now, 0.0)
    scale = float(shares.sum() / (shares @ shares))
    return ScaleFit(kind, now, scale, float(np.abs(scale * shares - 1).max()))
