"""What commands print with ``--json``: one object each, with a published schema (docs/schemas)."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from csd_emu.fidelity import FidelityRow, ScaleFit, SuggestedFigure
from firmware_agent.wire import LayerTimes, PhaseSeconds
from host.deploy.report import DeployReport
from host.gate.report import GateReport
from host.placement.report import PlanReport
from host.plain_text import plain_json
from host.report.comparison import Comparison
from host.reproduce.figures import HypertuneReport
from host.reproduce.placement_figures import PlacementReport
from host.reproduce.planner_figures import PlannerReport
from host.simulation.figures import SimulateReport
from host.simulation.tree_figures import SimulateServersReport
from host.summary import Summary
from host.top_report import TopReport
from host.tune_report import TuneReport


class DeviceStatus(msgspec.Struct, frozen=True):
    """One device in `csd-emu status`; `state` is ``running`` or ``gone``."""

    name: str
    profile: str
    state: str
    samples: int
    incarnation: int


class ArrayStatus(msgspec.Struct, frozen=True):
    """`csd-emu status` and `csd-emu up`.

    `state` is ``up``, ``damaged`` (devices are missing), ``down`` or ``unreadable`` (its state file is; csd-emu sweep
    ends it).
    """

    array: str
    engine: str
    state: str
    port: int | None
    devices: list[DeviceStatus]


class StatusReport(msgspec.Struct, frozen=True):
    """`csd-emu status`: every array of this user that has state or is named."""

    arrays: list[ArrayStatus]


class SweepReport(msgspec.Struct, frozen=True):
    """`csd-emu down` and `csd-emu sweep`: the devices ended, per array; `busy` arrays were in use and left alone."""

    ended: dict[str, list[str]]
    busy: list[str]


class PlannedHypervisor(msgspec.Struct, frozen=True):
    """One hypervisor of `csd-emu up --plan`.

    `memory_bytes` and `disk_bytes` are what drives may take there, null if nobody knows; `cores_bind` says that there
    may be no more drives than cores, `room` how many more fit, null without a limit. `problem`: why it cannot be used.
    """

    name: str
    uri: str
    cores: int
    memory_bytes: float | None
    disk_bytes: float | None
    cores_bind: bool
    room: int | None
    devices: list[str]
    problem: str


class PlacementPlanReport(msgspec.Struct, frozen=True):
    """`csd-emu up --plan`: where the drives would go; `homeless` ones would go nowhere, with what is wrong."""

    array: str
    spread: str
    hypervisors: list[PlannedHypervisor]
    homeless: dict[str, str]


class ValidationReport(msgspec.Struct, frozen=True):
    """`csd-emu validate`: the configuration as resolved; `domains` holds the domain XML of each device (qemu).

    `built` says whether the job's model, strategy and tuner were imported and tried.
    """

    array: dict[str, Any]
    job: dict[str, Any] | None
    devices: list[str]
    domains: dict[str, str]
    built: bool = False


class InjectReport(msgspec.Struct, frozen=True):
    """`csd-emu inject`: what was done, and whether a run that is going on wrote it down as an event."""

    array: str
    device: str
    fault: str
    detail: str
    recorded: bool


class ImageEntry(msgspec.Struct, frozen=True):
    """One ARM image in the cache."""

    hash: str
    size_bytes: int
    build_seconds: float
    current: bool


class ImageReport(msgspec.Struct, frozen=True):
    """`csd-emu image build`, `list` and `prune`; `removed` names what prune removed."""

    images: list[ImageEntry]
    removed: list[str]


class BenchReport(msgspec.Struct, frozen=True):
    """`csd-emu bench NAME`: figures, the raw samples behind them, and the machine that they were measured on."""

    bench: str
    engine: str
    clock: str
    seed: int
    figures: dict[str, float]
    samples: dict[str, Any]
    machine: dict[str, Any]


class NamedText(msgspec.Struct, frozen=True):
    """Something that a command can be given by `name`, and what it is."""

    name: str
    text: str


class BenchList(msgspec.Struct, frozen=True):
    """`csd-emu bench` without a name."""

    benches: list[NamedText]


class ExamplesReport(msgspec.Struct, frozen=True):
    """`csd-emu example`: what there is, and the files that were written."""

    examples: list[NamedText]
    written: list[str]


class FigureEntry(msgspec.Struct, frozen=True):
    """One figure of a profile: `unit` is empty for a count or ratio, `assumed` where nothing published backs it."""

    figure: str
    value: float
    unit: str
    source: str
    assumed: bool


class ProfileEntry(msgspec.Struct, frozen=True):
    """One profile; `kind` is ``drive`` or ``host``."""

    name: str
    kind: str
    figures: list[FigureEntry]


class ProfilesReport(msgspec.Struct, frozen=True):
    """`csd-emu profiles`: the built-in profiles and the user's own, or the one that was asked for."""

    profiles: list[ProfileEntry]


class PowerFitReport(msgspec.Struct, frozen=True):
    """`csd-emu power fit`: watts from a meter log, and the profile written with them.

    `active_watts` is what all busy cores draw above `idle_watts`; `residual_watts` what the model leaves (root mean
    square).
    """

    profile: str
    path: str
    base: str
    samples: int
    seconds: float
    idle_watts: float
    idle_standard_error_watts: float
    active_watts: float
    active_standard_error_watts: float
    residual_watts: float


class CalibrationOutcome(msgspec.Struct, frozen=True):
    """One batch size in `csd-emu calibrate`: seconds of the median step, per phase, on two cores.

    `reference_seconds` are as measured, `profile_seconds` those of a drive of the report's profile; on a real drive
    both are the same. `error_estimate` is how far the table would be off here without this row, null with fewer than
    three rows; `spread` the distance of the steps' quartiles over their median. `layers` are of the reference seconds,
    null if they were not measured.
    """

    batch_size: int
    steps: int
    reference_seconds: PhaseSeconds
    profile_seconds: PhaseSeconds
    peak_memory_bytes: int
    error_estimate: float | None
    wall_seconds: float
    spread: float
    layers: LayerTimes | None = None


class VerifiedRow(msgspec.Struct, frozen=True):
    """One row that was measured again; `relative_difference` is measured / table - 1, of seconds per step."""

    batch_size: int
    table_seconds: float
    measured_seconds: float
    relative_difference: float


class CalibrationReport(msgspec.Struct, frozen=True):
    """`csd-emu calibrate`: the table, and what of it was measured again.

    `core` and `clock` say what was measured: the counted reference core of a virtual machine, or a real `drive` (empty
    of a virtual one) by the wall's. `confirmed` is false if a row of `verified` differs by more than `tolerance`.
    `wall_seconds` is the cost of the command.
    """

    model: str
    arguments: dict[str, int | float | str | bool]
    input_shape: list[int]
    classes: int
    parameters: int
    clock: str
    core: str
    profile: str
    drive: str
    image: str
    path: str
    rows: list[CalibrationOutcome]
    encode_seconds: float
    verified: list[VerifiedRow]
    tolerance: float
    confirmed: bool
    wall_seconds: float


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


class ReportOutput(msgspec.Struct, frozen=True):
    """`csd-emu report`: the file, how far the run came, and how it compares with a host that trains alone."""

    report: str
    run_directory: str
    finished: bool
    rounds: int
    events: int
    notes: list[str]
    comparison: Comparison


OUTPUTS: dict[str, type[msgspec.Struct]] = {
    "run": Summary,
    "up": ArrayStatus,
    "up-plan": PlacementPlanReport,
    "status": StatusReport,
    "down": SweepReport,
    "sweep": SweepReport,
    "validate": ValidationReport,
    "inject": InjectReport,
    "image": ImageReport,
    "bench": BenchReport,
    "benches": BenchList,
    "example": ExamplesReport,
    "profiles": ProfilesReport,
    "power": PowerFitReport,
    "calibrate": CalibrationReport,
    "fidelity": FidelityReport,
    "top": TopReport,
    "report": ReportOutput,
    "simulate": SimulateReport,
    "simulate-servers": SimulateServersReport,
    "reproduce": HypertuneReport,
    "reproduce-placement": PlacementReport,
    "reproduce-planner": PlannerReport,
    "tune": TuneReport,
    "plan": PlanReport,
    "ci": GateReport,
    "deploy": DeployReport,
}


def print_json(output: msgspec.Struct) -> None:
    """Print one output as one indented JSON object."""
    sys.stdout.buffer.write(plain_json(msgspec.json.format(msgspec.json.encode(output))) + b"\n")
    sys.stdout.flush()


def schema(name: str) -> dict[str, Any]:
    """Return the JSON schema of what command `name` prints."""
    return msgspec.json.schema(OUTPUTS[name])
