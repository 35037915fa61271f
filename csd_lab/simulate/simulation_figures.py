"""Structure of what `csd-emu simulate` prints; see docs/simulate.md."""

from __future__ import annotations

from typing import Annotated

import msgspec

from csd_emu.util.renamed import Renamed, old_name_of
from host.monitoring.report.comparison import AssumedFigure


class SimulatedClass(msgspec.Struct, frozen=True):
    """Equal nodes of a simulated run; the host is one of its own.

    Attributes:
        profile: of them.
        nodes: how many there are.
        first_batches: smallest and largest batch in the first step.
        last_batches: smallest and largest batch in the last step.
        busy_share: of the array's seconds, in which they compute; mean over them.
        covered: whether calibration has run the kernels of the batches that they compute at once.
    """

    profile: str
    nodes: int
    first_batches: list[int]
    last_batches: list[int]
    busy_share: float
    covered: bool


class SimulatedRetune(msgspec.Struct, frozen=True):
    """A retune: the first step that has it, what it was expected to win (in steps), and why."""

    step: int
    gain_steps: float
    reason: str


class SimulatedBaseline(Renamed, frozen=True):
    """The host trains alone on as many records, the drives are plain storage."""

    batch_size: int
    records_per_second: float
    joules_per_record: float
    link_bytes_per_record: float
    images_per_second: Annotated[float, old_name_of("records_per_second")] = 0.0
    joules_per_image: Annotated[float, old_name_of("joules_per_record")] = 0.0
    link_bytes_per_image: Annotated[float, old_name_of("link_bytes_per_record")] = 0.0


class SimulatedRun(Renamed, frozen=True):
    """A simulated run, if a host is worth `ratio` newport drives.

    Attributes:
        ratio: of the host's band.
        array_seconds: of the whole run.
        records: records trained on.
        records_per_second: records per array second.
        joules: of everything in the array, per component.
        joules_per_record: all of them over the records.
        link_bytes_per_record: over the host's link, messages and the host's own reads.
        step_seconds: shortest, median and longest step.
        exchange_seconds: of a step in the first batches, that are neither reading nor computing.
        classes: of nodes.
        retunes: in order.
        baseline: the host alone.
        speedup: `records_per_second` over the baseline's.
        energy_factor: the baseline's `joules_per_record` over ours.
    """

    ratio: float
    array_seconds: float
    records: int
    records_per_second: float
    joules: dict[str, float]
    joules_per_record: float
    link_bytes_per_record: float
    step_seconds: list[float]
    exchange_seconds: float
    classes: list[SimulatedClass]
    retunes: list[SimulatedRetune]
    baseline: SimulatedBaseline
    speedup: float
    energy_factor: float
    images: Annotated[int, old_name_of("records")] = 0
    images_per_second: Annotated[float, old_name_of("records_per_second")] = 0.0
    joules_per_image: Annotated[float, old_name_of("joules_per_record")] = 0.0
    link_bytes_per_image: Annotated[float, old_name_of("link_bytes_per_record")] = 0.0


class SimulateReport(msgspec.Struct, frozen=True):
    """`csd-emu simulate`: nothing in it was measured.

    Attributes:
        array, model, tuner: what was simulated.
        drives: how many.
        host_trains: whether the host takes part.
        steps: so many.
        clock: of all seconds but `wall_seconds`: ``modelled``.
        basis: ``simulated``.
        runs: one for each of the low, the middle and the high end of what a host is worth.
        notes: what to know when reading them.
        assumed: figures that everything rests on and for which there is no source.
        wall_seconds: what the simulation took.
    """

    array: str
    model: str
    tuner: str
    drives: int
    host_trains: bool
    steps: int
    clock: str
    basis: str
    runs: list[SimulatedRun]
    notes: list[str]
    assumed: list[AssumedFigure]
    wall_seconds: float
