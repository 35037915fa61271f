"""What published headlines are predicted from: `blind_inputs.yaml`, frozen before anything was compared.

No input is of a paper whose headline is predicted; `check_sources` refuses one whose source names such a paper.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from importlib import resources

import msgspec

from csd_emu.util.yaml_files import parse_yaml
from firmware_agent.common.errors import ConfigurationError

FILE = "blind_inputs.yaml"
# Of the file as it was when the first comparison was made. Who changes the inputs afterwards says so here.
FROZEN_SHA256 = "068289af769ae53732eef16ea01a4119054a41b10d5ee88218bd7c1707ad6a90"
# Papers whose headlines are predicted, their systems, their drives and their makers.
TARGETS = re.compile(
    r"\b(hypertune|stannis|solana|newport|laguna|ngd|tecs|iccad|isqed|gu et al|icpads|park et al|ralp|stanza"
    r"|autobyte)\b",
    re.IGNORECASE,
)
# Models have this side unless their own is given; arithmetic goes with the square of it.
_SIDES = {"inception_v3": 299}
_SIDE = 224


class BlindInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A figure, what it may be instead, and where it comes from.

    Attributes:
        value: taken in the middle.
        low, high: ends of what it may be, `low` <= `value` <= `high`; all above 0.
        unit: of the three; empty for a count or a ratio.
        source: publication; begins with ``assumed`` where none could be read.
        read: when it was read, YYYY-MM-DD.
    """

    value: float
    low: float
    high: float
    unit: str
    source: str
    read: str


class Processor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An x86 processor.

    Attributes:
        cores: that computed.
        flops_per_cycle: of one core, float32.
        nominal_gigahertz: of its name.
        source, read: as of a `BlindInput`.
    """

    cores: int
    flops_per_cycle: int
    nominal_gigahertz: float
    source: str
    read: str

    @property
    def gigaflops(self) -> float:
        """Nominal peak, 10^9 operations a second."""
        return self.cores * self.flops_per_cycle * self.nominal_gigahertz


class Throughput(Processor, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a processor was published to train.

    Attributes:
        model: of the zoo.
        images_per_second: forward, backward and update.
        side: of an image, pixels.
        batch: images of a step.
    """

    model: str
    images_per_second: float
    side: int
    batch: int

    @property
    def per_gigaflop(self) -> float:
        """Images of the model's own side per 10^9 operations of nominal peak."""
        return self.images_per_second * (self.side / _SIDES.get(self.model, _SIDE)) ** 2 / self.gigaflops


class BlindFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The other inputs.

    Attributes:
        host_clock: real clocks over nominal ones, host's over what was measured.
        host_software: rate of the library that trained over that of what was measured.
        drive_clock: GHz.
        parallel_efficiency: share of four cores that parallel phases gain.
        measured_cycles, assumed_cycles: real cycles over those of the core model, and over assumed ones.
        drives: that compute.
        host_link, drive_link: GB/s, each way.
        server_idle: W, of the server without drives.
        host_added: W, of the host that trains, above that.
        drive_idle: W, of each drive.
        drive_core: W, of each busy core of a drive.
        drive_dram: W, of a computing drive's memory.
    """

    host_clock: BlindInput
    host_software: BlindInput
    drive_clock: BlindInput
    parallel_efficiency: BlindInput
    measured_cycles: BlindInput
    assumed_cycles: BlindInput
    drives: BlindInput
    host_link: BlindInput
    drive_link: BlindInput
    server_idle: BlindInput
    host_added: BlindInput
    drive_idle: BlindInput
    drive_core: BlindInput
    drive_dram: BlindInput


class BlindInputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of `blind_inputs.yaml`; `relatives` are rates over that of resnet50, `host` is scaled to."""

    frozen: str
    throughputs: list[Throughput]
    relatives: dict[str, BlindInput]
    host: Processor
    figures: BlindFigures

    def ranges(self) -> Iterator[tuple[str, BlindInput]]:
        """Yield each figure that has a band, with its name."""
        yield from ((f"relatives.{model}", entry) for model, entry in self.relatives.items())
        yield from ((name, getattr(self.figures, name)) for name in self.figures.__struct_fields__)

    def sources(self) -> Iterator[tuple[str, str]]:
        """Yield each source, with the name of what it is of."""
        yield from ((f"throughputs.{entry.model}", entry.source) for entry in self.throughputs)
        yield from ((name, entry.source) for name, entry in self.ranges())
        yield "host", self.host.source


def parse_inputs(text: str) -> BlindInputs:
    """Return the inputs in `text`.

    Raises:
        ConfigurationError: it is no YAML of this structure, a band is not around its value, nothing is published of
            resnet50, or a source names a paper whose headline is predicted.
    """
    try:
        inputs = msgspec.convert(parse_yaml(text, FILE), BlindInputs)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{FILE}: {error}; see the docstrings of csd_lab.reproduce.blind_inputs") from error
    for name, entry in inputs.ranges():
        if not 0 < entry.low <= entry.value <= entry.high:
            raise ConfigurationError(
                f"{FILE}: {name}: {entry.low:g} to {entry.high:g} is no band around {entry.value:g}; give 0 < low <= "
                "value <= high"
            )
    if not any(entry.model == "resnet50" for entry in inputs.throughputs):
        raise ConfigurationError(f"{FILE}: no throughput of resnet50, which relatives are of; give one")
    check_sources(inputs)
    return inputs


def check_sources(inputs: BlindInputs) -> None:
    """Refuse inputs of which one rests on a paper whose headline is predicted.

    Raises:
        ConfigurationError: a source names such a paper, its system, drive or maker.
    """
    for name, source in inputs.sources():
        if not source.strip():
            raise ConfigurationError(f"{FILE}: {name} has no source; say where the figure was read")
        if found := TARGETS.search(source):
            raise ConfigurationError(
                f"{FILE}: {name}: the source names {found[0]!r}, a headline of which is predicted; take a figure from "
                "elsewhere"
            )


def load_inputs() -> BlindInputs:
    """Return the frozen inputs.

    Raises:
        ConfigurationError: the file is not the one that was frozen, or as `parse_inputs`.
    """
    content = (resources.files("csd_lab.reproduce") / FILE).read_bytes()
    if hashlib.sha256(content).hexdigest() != FROZEN_SHA256:
        raise ConfigurationError(
            f"{FILE}: is not what was frozen before the comparison; restore it, or freeze the new one: its SHA-256 "
            "goes into FROZEN_SHA256, its date into frozen, and what changed into docs/reproduce.md"
        )
    return parse_inputs(content.decode())
