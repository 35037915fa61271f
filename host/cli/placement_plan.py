"""`csd-emu plan --placement`: from the files to the report."""

from __future__ import annotations

from pathlib import Path

from csd_emu.profiles.calibration import CalibrationStore
from host.app.prepare import read_placement
from host.cli.placement_report import PlanReport, placement_plan
from host.training.split.decide_cut import settle


def plan_placement(job_path: Path, array_path: Path, store: CalibrationStore) -> PlanReport:
    """Return where a job's model is best cut on an array.

    Raises:
        ConfigurationError: a file breaks a rule, the job is not synchronous, or no cut fits.
        CalibrationError: how fast the devices are is not known.
        ModelError: the model cannot be looked at.
    """
    request = read_placement(job_path, array_path, store)
    choice = settle(request, store)
    return PlanReport(
        model=request.job.model,
        input_shape=list(request.shape),
        array=request.config.name,
        placement=placement_plan(request, choice.situation, choice.decision),
    )
