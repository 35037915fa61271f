"""The published JSON schemas of array and job files and of what commands print with ``--json``.

``python -m host.cli.schemas`` writes them to docs/schemas.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from pydantic import BaseModel

from csd_emu.config.array_file import ArrayConfig
from csd_emu.config.servers_file import ServersConfig
from csd_emu.engines.qemu.vm_scheduling import VmScheduleReport
from csd_emu.engines.remote.inventory import Inventory
from csd_emu.util.nearest_word import hint_at
from firmware_agent.common.errors import ConfigurationError
from host.app.array_actions import ArrayStatus, StatusReport, SweepReport
from host.app.calibration_report import CalibrationReport
from host.app.gate.gate_baseline import GateBaseline
from host.app.gate.gate_checks import GateReport
from host.app.image_actions import ImageReport
from host.app.inject_fault import InjectReport
from host.app.machine_check import MachineReport
from host.app.validation import ValidationReport
from host.cli.drive_description import DescribeReport
from host.cli.lab_commands import OUTPUTS_GROUP, list_entries
from host.cli.placement_report import PlanReport
from host.cli.profiles_report import ProfilesReport
from host.cli.shipped_examples import ExamplesReport
from host.cli.top_report import TopReport
from host.config.job_file import JobConfig
from host.core.summary import Summary
from host.deploy.verb_protocol import DeployReport
from host.monitoring.report.report_page import ReportOutput
from host.monitoring.report.run_decisions import Explanation
from host.monitoring.runs.run_comparison import RunComparison
from host.monitoring.runs.run_listing import RunList

_OUTPUTS: dict[str, type[msgspec.Struct]] = {
    "run": Summary,
    "up": ArrayStatus,
    "up-plan": VmScheduleReport,
    "status": StatusReport,
    "down": SweepReport,
    "clean": SweepReport,
    "sweep": SweepReport,
    "validate": ValidationReport,
    "inject": InjectReport,
    "image": ImageReport,
    "example": ExamplesReport,
    "profiles": ProfilesReport,
    "describe": DescribeReport,
    "calibrate": CalibrationReport,
    "top": TopReport,
    "report": ReportOutput,
    "explain": Explanation,
    "doctor": MachineReport,
    "runs": RunList,
    "compare": RunComparison,
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
    return _OUTPUTS.get(name) or list_entries(OUTPUTS_GROUP)[name].load()


CONFIGURATIONS: dict[str, type[BaseModel]] = {
    "array": ArrayConfig,
    "job": JobConfig,
    "inventory": Inventory,
    "servers": ServersConfig,
}
# Files that commands write and read again.
RECORDS: dict[str, type[msgspec.Struct]] = {"ci-baseline": GateBaseline}

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_files() -> dict[str, str]:
    """Return file name -> content: one schema per command, and one for each kind of file that is read."""
    schemas = {
        **{
            name: {"title": f"csd-emu {name} --json"} | msgspec.json.schema(find_output(name))
            for name in list_outputs()
        },
        **{name: msgspec.json.schema(kind) for name, kind in RECORDS.items()},
        **{f"{name}.yaml": kind.model_json_schema() for name, kind in CONFIGURATIONS.items()},
    }
    return {f"{name}.json": json.dumps({"$schema": DIALECT} | text, indent=2) + "\n" for name, text in schemas.items()}


def list_schemas() -> list[str]:
    """Return the names that `find_schema` knows."""
    return [*(f"{name}.yaml" for name in CONFIGURATIONS), *RECORDS, *list_outputs()]


def find_schema(name: str) -> str:
    """Return the JSON schema called `name`, as JSON text.

    Raises:
        ConfigurationError: there is none.
    """
    if name not in list_schemas():
        hint = hint_at(name, list_schemas(), f"choose one of: {', '.join(list_schemas())}")
        raise ConfigurationError(f"schema {name!r} is not known; {hint}")
    return schema_files()[f"{name}.json"]


def check_clone(folder: Path) -> None:
    """Return if `folder`, two levels below a project's root, belongs to a clone: a package has no docs to write.

    Raises:
        SystemExit: it does not; the message says so.
    """
    if not (folder.parents[1] / "pyproject.toml").is_file():
        raise SystemExit(f"{folder}: is not in a clone of csd-emu; run this in a clone, where docs/ is")


def main() -> None:
    """Write the files; one that belongs to no command is removed."""
    check_clone(FOLDER)
    files = schema_files()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in FOLDER.glob("*.json"):
        if path.name not in files:
            path.unlink()
    for name, content in files.items():
        (FOLDER / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
