"""Structures of what `csd-emu simulate` prints, with ``--array`` and with ``--servers``; see docs/simulate.md."""

from __future__ import annotations

from typing import Annotated

import msgspec

from csd_emu.util.renamed import Renamed, old_name_of
from host.core.figure_bands import Band
from host.core.summary import INSTRUCTIONS
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
        ratio: of the host's band; of a host that was measured, what it is worth at its table's largest batch.
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
        bands: of ``array_seconds``, ``records_per_second``, ``joules_per_record``, ``exchange_seconds``, ``speedup``,
            ``energy_factor``, ``step_seconds`` (the median), ``baseline.records_per_second`` and
            ``baseline.joules_per_record``, with the figures of all profiles at either end of theirs; of the middle of
            the host's band alone.
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
    bands: dict[str, Band] = msgspec.field(default_factory=dict)
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
        core_model: what a nanosecond of them stands for: one of ``instructions`` or of ``cycles``.
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
    core_model: str = INSTRUCTIONS


class TreeSeconds(msgspec.Struct, frozen=True):
    """Where seconds go, on the slowest server's way.

    Attributes:
        compute: reading and computing of its slowest node.
        drive_link: weights to drives and gradients back.
        host: its sum of gradients, and the optimiser.
        server_link: the all-reduce's bytes at the servers' own links.
        rack_uplink: by how much longer they take because racks' uplinks are narrower.
        hops: the all-reduce's latencies.
        failures: rendezvous, all-reduces that broke, waiting for servers.
        retunes: what they are charged.
    """

    compute: float
    drive_link: float
    host: float
    server_link: float
    rack_uplink: float
    hops: float
    failures: float
    retunes: float


class TreeBytes(msgspec.Struct, frozen=True):
    """Bytes that crossed: between hosts and drives, out of servers, and of those up out of racks."""

    drive_links: float
    server_links: float
    rack_uplinks: float


class TreeStepFigures(Renamed, frozen=True):
    """One step: its length and where it went, records that counted, energy, bytes, and who took part to its end."""

    array_seconds: float
    seconds: TreeSeconds
    records: int
    joules: float
    bytes: TreeBytes
    servers: int
    drives: int
    images: Annotated[int, old_name_of("records")] = 0


class TreeLosses(msgspec.Struct, frozen=True):
    """How many servers and drives were lost, and how many came back."""

    servers_lost: int
    servers_back: int
    drives_lost: int
    drives_back: int


class SimulatedTree(Renamed, frozen=True):
    """A simulated run of several servers, if a host is worth `ratio` newport drives.

    Attributes:
        ratio: of the hosts' band.
        array_seconds: of the whole run.
        records: records trained on.
        records_per_second: records per array second.
        ideal_records_per_second: of all servers if each trained alone, undisturbed, with the first step's batches.
        efficiency: `records_per_second` over the ideal.
        joules: of all servers, per component.
        joules_per_record: all of them over the records.
        step_seconds: shortest, median and longest step.
        seconds: of all steps, where they went.
        bytes: of all steps.
        bottleneck: where most of the seconds went.
        next_bottleneck: where most of the seconds beside computing went.
        allreduce_seconds: of one all-reduce of all servers, by each algorithm.
        losses: of servers and drives.
        classes: of nodes.
        retunes: in order.
        steps: one by one.
        bands: of ``array_seconds``, ``records_per_second``, ``ideal_records_per_second``, ``efficiency``,
            ``joules_per_record``, ``step_seconds`` (the median) and each of ``seconds``, as ``seconds.compute``, with
            the figures of all profiles at either end of theirs; of the middle of the hosts' band alone.
    """

    ratio: float
    array_seconds: float
    records: int
    records_per_second: float
    ideal_records_per_second: float
    efficiency: float
    joules: dict[str, float]
    joules_per_record: float
    step_seconds: list[float]
    seconds: TreeSeconds
    bytes: TreeBytes
    bottleneck: str
    next_bottleneck: str
    allreduce_seconds: dict[str, float]
    losses: TreeLosses
    classes: list[SimulatedClass]
    retunes: list[SimulatedRetune]
    steps: list[TreeStepFigures]
    bands: dict[str, Band] = msgspec.field(default_factory=dict)
    images: Annotated[int, old_name_of("records")] = 0
    images_per_second: Annotated[float, old_name_of("records_per_second")] = 0.0
    ideal_images_per_second: Annotated[float, old_name_of("ideal_records_per_second")] = 0.0
    joules_per_image: Annotated[float, old_name_of("joules_per_record")] = 0.0


class SimulateServersReport(msgspec.Struct, frozen=True):
    """`csd-emu simulate --servers`: nothing in it was measured.

    Attributes:
        servers_file: the name in it.
        model, tuner: what was simulated.
        servers, drives: how many.
        hosts_train: whether any host takes part.
        steps: how many were asked for.
        reduce_every: after so many steps servers add up.
        allreduce: how.
        clock: of all seconds but `wall_seconds`: ``modelled``.
        core_model: what a nanosecond of them stands for: one of ``instructions`` or of ``cycles``.
        basis: ``simulated``.
        runs: one for each of the low, the middle and the high end of what a host is worth; one alone if none trains.
        notes: what to know when reading them.
        assumed: figures that everything rests on and for which there is no source.
        wall_seconds: what the simulation took.
    """

    servers_file: str
    model: str
    tuner: str
    servers: int
    drives: int
    hosts_train: bool
    steps: int
    reduce_every: int
    allreduce: str
    clock: str
    basis: str
    runs: list[SimulatedTree]
    notes: list[str]
    assumed: list[AssumedFigure]
    wall_seconds: float
    core_model: str = INSTRUCTIONS
