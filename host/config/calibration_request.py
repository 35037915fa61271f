"""Request of `csd-emu calibrate`, checked; nothing is started here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from csd_emu.config.array_file import MAX_MEMORY_BYTES, MIN_MEMORY_BYTES
from csd_emu.cycles.parameters import CoreParameters
from csd_emu.profiles import get_profile
from csd_emu.profiles.calibration import CalibrationKey
from csd_emu.profiles.calibration.table_key import core_name
from csd_emu.util.record_shape import Shape, parse_shape
from csd_emu.util.yaml_files import parse_yaml
from firmware_agent.common.errors import ConfigurationError, UnitError
from firmware_agent.common.frames.session_frames import Job
from firmware_agent.common.models import ZOO, resolve_model
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.units import BYTES, format_bytes, parse_quantity
from host.config.job_file import DataSection
from host.core.datasets import synthetic_source
from host.core.model_facts import ModelFacts, inspect_model

MIN_BATCHES = 2
MAX_BATCH = 65536
_MEBIBYTE = 1 << 20
_MEMORY_STEPS = tuple(gib << 30 for gib in (2, 4, 8, 16))


@dataclass(frozen=True)
class MeasuredJob:
    """A job whose own steps are measured, with its loss and optimiser, on records of its own.

    Attributes:
        frame: the job as a drive gets it.
        data: that it is trained on.
        task: see `CalibrationKey`.
        layers: whether a run of it may need what each layer takes: a federated one does not.
    """

    frame: Job
    data: DataSection
    task: str
    layers: bool


@dataclass(frozen=True)
class CalibrationRequest:
    """What to measure.

    Attributes:
        spec: the model.
        facts: of it at `input_shape`.
        input_shape: of what the model takes of a record; of an image (channels, height, width).
        batches: batch sizes, increasing.
        steps: per batch; None for as many as `MEASURE_SECONDS` hold, at most `MAX_STEPS`.
        memory_bytes: DRAM of the virtual machine; None for what the model seems to need.
        seed: of weights, images and order.
        layers: whether to measure what each layer takes, too, if the job may need it.
        cycles: whether to have the core model count the cycles of whole steps, too; of virtual machines alone.
        profile: of the drive whose core is modelled; None: the reference core.
        threads: that compute a step.
        job: that is measured; None for the model on images of noise, with cross-entropy and SGD.
    """

    spec: ShippedCode
    facts: ModelFacts
    input_shape: Shape
    batches: tuple[int, ...]
    steps: int | None = None
    memory_bytes: int | None = None
    seed: int = 0
    layers: bool = False
    cycles: bool = False
    profile: str | None = None
    threads: int = 1
    job: MeasuredJob | None = None

    def __post_init__(self) -> None:
        """Check what was asked for.

        Raises:
            ConfigurationError: fewer than two batch sizes, or one twice; or the core of a profile, and no cycles.
        """
        sizes = self.batches
        if len(set(sizes)) < max(MIN_BATCHES, len(sizes)) or not 1 <= sizes[0] <= sizes[-1] <= MAX_BATCH:
            raise ConfigurationError(
                f"--batches {','.join(map(str, sizes))}: a table needs two or more different batch sizes, each between "
                f"1 and {MAX_BATCH}"
            )
        if self.profile is not None and not self.cycles:
            raise ConfigurationError(
                "--profile: the cycles of its core are counted on a virtual machine; leave out --no-cycles, --verify, "
                "--inventory, --drive and --host"
            )

    @property
    def core(self) -> CoreParameters:
        """The core whose cycles are counted.

        Raises:
            ConfigurationError: there is no such profile, or the core model has none like its core.
        """
        return CoreParameters() if self.profile is None else get_profile(self.profile).core_parameters

    @property
    def key(self) -> CalibrationKey:
        """What the table will be of."""
        return CalibrationKey.of(self.spec, self.input_shape, core_name(self.core), self.job.task if self.job else "")

    @property
    def data(self) -> DataSection:
        """The data set to measure with: the job's, else noise of the model's shape."""
        noise = synthetic_source(self.input_shape, self.facts.classes)
        return DataSection(source=noise) if self.job is None else self.job.data

    @property
    def machine_bytes(self) -> int:
        """DRAM of the machine: what was asked for, else one of a few sizes, for each needs a template of its own.

        Raises:
            ConfigurationError: the model seems to need more than a machine can have.
        """
        if self.memory_bytes is not None:
            return self.memory_bytes
        needed = self.facts.memory_bytes(self.batches[-1])
        for size in _MEMORY_STEPS:
            if needed <= size:
                return size
        raise ConfigurationError(
            f"model {self.spec.name!r} at batch {self.batches[-1]} seems to need {format_bytes(needed)} of memory, a "
            f"drive has {format_bytes(MAX_MEMORY_BYTES)} at most; take smaller batches, or name a size with --memory"
        )


def make_request(
    spec: ShippedCode,
    input_shape: Shape,
    batches: Sequence[int],
    steps: int | None = None,
    memory_bytes: int | None = None,
    seed: int = 0,
    layers: bool = False,
) -> CalibrationRequest:
    """Return a checked request.

    Raises:
        ConfigurationError: fewer than two batch sizes, one twice, or more memory than a machine can have.
        ModelError: the model does not fit the shape.
    """
    sizes = tuple(sorted(batches))
    request = CalibrationRequest(
        spec, inspect_model(spec, input_shape), input_shape, sizes, steps, memory_bytes, seed, layers
    )
    _ = request.machine_bytes  # too large for any machine is said now
    return request


def read_spec(model: str, classes: int | None = None, arguments: Sequence[str] = ()) -> ShippedCode:
    """Return the model that the texts of a command line stand for; its file is looked for from here.

    Raises:
        ConfigurationError: one of them is wrong.
    """
    builder_arguments = dict(map(_argument, arguments)) | ({} if classes is None else {"num_classes": classes})
    return resolve_model(model, builder_arguments, Path())


def read_request(
    spec: ShippedCode,
    shape: str | None,
    batches: str,
    steps: int | None,
    memory: str | None,
    seed: int,
    layers: bool = False,
) -> CalibrationRequest:
    """Return the request that the texts of a command line stand for.

    Raises:
        ConfigurationError: one of them is wrong.
    """
    if shape is None and spec.name not in ZOO:
        raise ConfigurationError(
            f"model {spec.name!r} is not built in; name the shape of its images: --input 3x224x224"
        )
    input_shape = ZOO[spec.name].input_shape if shape is None else parse_shape(shape)
    return make_request(spec, input_shape, read_batches(batches), steps, read_memory(memory), seed, layers)


def read_batches(text: str) -> list[int]:
    """Return the batch sizes that ``1,2,4`` names.

    Raises:
        ConfigurationError: it names none.
    """
    sizes = text.split(",")
    if not all(size.strip().isascii() and size.strip().isdigit() for size in sizes):
        raise ConfigurationError(f"--batches {text!r}: write batch sizes with commas between them, as in 1,2,4")
    return [int(size) for size in sizes]


def _argument(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    try:
        parsed = parse_yaml(value, text) if equals else None
    except ConfigurationError:
        parsed = None
    if not name.isidentifier() or not isinstance(parsed, int | float | str | bool):
        raise ConfigurationError(f"--argument {text!r}: write NAME=VALUE, as in width=16")
    return name, parsed


def read_memory(text: str | None) -> int | None:
    """Return the bytes of DRAM that ``8 GiB`` names.

    Raises:
        ConfigurationError: it names none that a machine can have.
    """
    if text is None:
        return None
    try:
        size = int(parse_quantity(text, BYTES, "8 GiB"))
    except UnitError as error:
        raise ConfigurationError(f"--memory: {error}") from error
    if not MIN_MEMORY_BYTES <= size <= MAX_MEMORY_BYTES or size % _MEBIBYTE:
        raise ConfigurationError(f"--memory {text!r}: must be whole MiB between 1 GiB and 16 GiB")
    return size
