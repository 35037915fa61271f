"""Structure of what each command prints with ``--json``; its schema is published in docs/schemas."""

from __future__ import annotations

from typing import Any

import msgspec

from host.app.array_actions import ArrayStatus, StatusReport, SweepReport
from host.app.calibration_report import CalibrationReport
from host.app.gate.gate_report import GateReport
from host.app.image_actions import ImageReport
from host.app.inject_fault import InjectReport
from host.app.real_drive import FidelityReport
from host.app.tune_report import TuneReport
from host.app.validation import ValidationReport
from host.cli.lab_commands import OUTPUTS_GROUP, list_entries
from host.cli.named_text import ExamplesReport
from host.cli.placement_report import PlanReport
from host.cli.power_reports import PowerFitReport, ProfilesReport
from host.cli.top_report import TopReport
from host.cli.vm_schedule import VmScheduleReport
from host.core.summary import Summary
from host.deploy.verb_protocol import DeployReport
from host.monitoring.report.report_page import ReportOutput

_OUTPUTS: dict[str, type[msgspec.Struct]] = {
    "run": Summary,
    "up": ArrayStatus,
    "up-plan": VmScheduleReport,
    "status": StatusReport,
    "down": SweepReport,
    "sweep": SweepReport,
    "validate": ValidationReport,
    "inject": InjectReport,
    "image": ImageReport,
    "example": ExamplesReport,
    "profiles": ProfilesReport,
    "power": PowerFitReport,
    "calibrate": CalibrationReport,
    "fidelity": FidelityReport,
    "top": TopReport,
    "report": ReportOutput,
    "tune": TuneReport,
    "plan": PlanReport,
    "ci": GateReport,
    "deploy": DeployReport,
}


def list_outputs() -> list[str]:
    """Return the names that `find_output` knows."""
    return [*_OUTPUTS, *list_entries(OUTPUTS_GROUP)]


def find_output(name: str) -> type[msgspec.Struct]:
    """Return the structure that command `name` prints.

    Raises:
        KeyError: there is no such command.
    """
    if name in _OUTPUTS:
        return _OUTPUTS[name]
    found: type[msgspec.Struct] = list_entries(OUTPUTS_GROUP)[name].load()
    return found


def schema(name: str) -> dict[str, Any]:
    """Return the JSON schema of what command `name` prints."""
    return msgspec.json.schema(find_output(name))
