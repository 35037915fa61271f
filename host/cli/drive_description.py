"""`csd-emu describe`: what drives offer, in SNIA's terms of computational storage (docs/standards.md)."""

from __future__ import annotations

from pathlib import Path

import msgspec
from rich.markup import escape
from rich.table import Table

from csd_emu.config.array_file import NATIVE, QEMU, REMOTE
from csd_emu.profiles import Profile, get_profile
from csd_emu.profiles.profile import FigureEntry
from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.frames.measure_frames import Measure, ProbeRead, ProbeSend
from firmware_agent.common.frames.session_frames import Disturb, Sabotage, Train
from firmware_agent.common.frames.step_frames import Step
from host.config.array_files import read_array
from host.core.console import console

MODEL = "SNIA Computational Storage Architecture and Programming Model 1.0"
# What a CSF is asked for with, and what it does.
FUNCTIONS: dict[type[msgspec.Struct], str] = {
    Train: "trains on the drive's own records for the epochs of a round; returns weights",
    Step: "computes the gradient of one batch; returns it, or takes the activations' part of a cut model",
    Measure: "measures seconds and memory of training steps, for calibration tables",
    ProbeRead: "reads from the shard, to measure the flash",
    ProbeSend: "sends bytes, to measure the link",
    Disturb: "starts or stops work that competes with training, for experiments",
    Sabotage: "does itself harm, for experiments",
}
_ENVIRONMENTS = {
    QEMU: "Linux in an ARM virtual machine",
    NATIVE: "a process on the machine that emulates the drive",
    REMOTE: "the drive's own Linux",
}
# Beginnings of the names of a profile's figures, by what they belong to.
_FIGURES = {
    "CSE": ("cores", "clock_", "instructions_", "parallel_", "core."),
    "FDM": ("dram_",),
    "storage": ("flash",),
    "interface": ("link_", "nvme_"),
    "power": ("power.",),
}


class ResourceEntry(msgspec.Struct, frozen=True):
    """Something that a drive offers.

    Attributes:
        term: SNIA's, such as ``CSE``; ``storage``, ``interface``, ``power``, ``discovery``, ``configuration`` and
            ``usage`` are the usual words.
        name: what it is here.
        text: more about it.
        figures: of the profile, or of the array file.
    """

    term: str
    name: str
    text: str = ""
    figures: list[FigureEntry] = []


class DriveDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Drives that are alike; `drives` and `engine` are empty of a profile alone."""

    drives: list[str]
    profile: str
    engine: str
    resources: list[ResourceEntry]


class DescribeReport(msgspec.Struct, frozen=True):
    """`csd-emu describe`: what drives offer; `model` is the document whose terms these are."""

    model: str
    drives: list[DriveDescription]


def describe_array(path: Path) -> DescribeReport:
    """Return what the drives of an array file offer, those that are alike together.

    Raises:
        ConfigurationError: the file breaks a rule.
    """
    array = read_array(path)
    alike: dict[tuple[str, str], list[str]] = {}
    for device in array.list_devices():
        alike.setdefault((device.profile, device.engine), []).append(device.name)
    memory = FigureEntry("memory", array.memory, "B", f"{path}: what the virtual machine has", assumed=False)
    return DescribeReport(
        MODEL,
        [
            _describe(get_profile(profile), names, engine, [memory] if engine == QEMU else [])
            for (profile, engine), names in alike.items()
        ],
    )


def describe_profile(name: str, paths: Paths) -> DescribeReport:
    """Return what drives of a profile offer.

    Raises:
        ConfigurationError: there is no such profile, or it is a host's.
    """
    profile = get_profile(name, paths.profiles)
    if profile.kind != "drive":
        raise ConfigurationError(f"profile {name}: is a host, which offers nothing as a drive; name a drive's")
    return DescribeReport(MODEL, [_describe(profile, [], "", [])])


def _describe(profile: Profile, names: list[str], engine: str, memory: list[FigureEntry]) -> DriveDescription:
    entries = profile.entries()
    figures = {term: [each for each in entries if each.figure.startswith(own)] for term, own in _FIGURES.items()}
    where = _ENVIRONMENTS.get(engine, "Linux in the drive")
    resources = [
        ResourceEntry("CSx", "CSD", "a drive that stores records and trains on them"),
        ResourceEntry("CSE", "ARM cores", "general-purpose; all of them run one agent", figures["CSE"]),
        ResourceEntry("CSEE", "Python with PyTorch", f"{where}; activated before the drive is discovered"),
        *(ResourceEntry("CSF", kind.__name__, text) for kind, text in FUNCTIONS.items()),
        ResourceEntry("FDM", "DRAM", "shared by agent and system", [*figures["FDM"], *memory]),
        ResourceEntry(
            "AFDM", "memory of the agent", "allocated as a job needs it; by model and batch in its calibration table"
        ),
        ResourceEntry(
            "storage",
            "NVMe namespaces",
            "the shard's, for a process a file; a virtual machine has another one with its identity",
            figures["storage"],
        ),
        ResourceEntry(
            "interface",
            "TCP link, and NVMe",
            "functions by the first; blocks by the second, which is modelled",
            figures["interface"],
        ),
        ResourceEntry("power", "of the drive", "", figures["power"]),
        ResourceEntry("discovery", "Hello", "the drive dials the host and says what it is; nothing is asked by NVMe"),
        ResourceEntry("configuration", "Job", "brings the model, the optimiser and the user's code; one at a time"),
        ResourceEntry("usage", "direct", "the host asks for a function; plain reads and writes start none"),
    ]
    return DriveDescription(drives=names, profile=profile.name, engine=engine, resources=resources)


def print_description(report: DescribeReport) -> None:
    """Print a table for drives that are alike; assumed figures stand out."""
    for each in report.drives:
        more = f" and {len(each.drives) - 8} more" if len(each.drives) > 8 else ""
        title = ", ".join(each.drives[:8]) + more or "drives"
        table = Table("term", "here", "value", "source", title=f"{title}: {each.profile} {each.engine}".rstrip())
        for resource in each.resources:
            table.add_row(resource.term, f"[bold]{escape(resource.name)}[/]", "", escape(resource.text))
            for figure in resource.figures:
                source = f"[yellow]{escape(figure.source)}[/]" if figure.assumed else escape(figure.source)
                table.add_row("", f"  {figure.figure}", f"{figure.value:.6g} {figure.unit}".rstrip(), source)
        console.print(table)
    console.print(f"terms: {report.model}; csd-emu docs standards says what they are here")
