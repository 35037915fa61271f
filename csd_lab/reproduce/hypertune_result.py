"""Structure of what `csd-emu reproduce hypertune` prints; see docs/reproduce.md.

`basis` says where a figure comes from: ``published``, ``emulated`` (counted in a virtual machine, scaled to the drive),
or ``simulated`` (timeline and power model over emulated seconds). Nothing was measured on a real drive.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from csd_emu.util.renamed import Renamed, old_name_of
from host.monitoring.report.comparison import AssumedFigure, PublishedCheck

EMULATED, SIMULATED, PUBLISHED_BASIS = "emulated", "simulated", "published"


class ModelInput(Renamed, frozen=True):
    """What a model's figures rest on.

    Attributes:
        model: of the zoo, at full size.
        input_shape: (channels, height, width).
        measured_batches: that calibration has run; the largest one is computed at once, more are accumulated.
        drive_records_per_second: of one drive at that batch, forward, backward and encoding.
        peak_memory_bytes: of it.
        state_bytes: of weights and buffers, which cross the link each way and step.
        record_bytes: of one image and its label.
        batch_statistics: whether batch normalisation sees only what is computed at once.
        basis: of the rate.
    """

    model: str
    input_shape: list[int]
    measured_batches: list[int]
    drive_records_per_second: float
    peak_memory_bytes: int
    state_bytes: int
    record_bytes: int
    batch_statistics: bool
    basis: str = EMULATED
    drive_images_per_second: Annotated[float, old_name_of("drive_records_per_second")] = 0.0


class Scaling(Renamed, frozen=True):
    """A server of which so many drives compute beside the host; the others are plain storage.

    Attributes:
        model: of the zoo.
        ratio: how many drives the host is worth.
        drives: that compute; with 0 the host trains alone, which is the baseline.
        drive_batch: records per step and drive, chosen by STANNIS.
        host_batch: of the host.
        step_seconds: of the array.
        exchange_seconds: of them, neither reading nor computing.
        records_per_second: records per array second.
        joules_per_record: of the whole server.
        link_bytes_per_record: over the host's link.
        speedup: throughput over the baseline's.
        energy_factor: the baseline's energy per record over this one.
        watts: of the whole server.
        basis: of all this.
    """

    model: str
    ratio: float
    drives: int
    drive_batch: int
    host_batch: int
    step_seconds: float
    exchange_seconds: float
    records_per_second: float
    joules_per_record: float
    link_bytes_per_record: float
    speedup: float
    energy_factor: float
    watts: float
    basis: str = SIMULATED
    images_per_second: Annotated[float, old_name_of("records_per_second")] = 0.0
    joules_per_image: Annotated[float, old_name_of("joules_per_record")] = 0.0
    link_bytes_per_image: Annotated[float, old_name_of("link_bytes_per_record")] = 0.0


class BatchEffect(msgspec.Struct, frozen=True):
    """All drives, the middle of the band, and a drive batch of `figures.drive_batch`.

    `chosen` is ``knee`` where only the drive's compute rate is looked at, ``stannis`` where the tuner puts it, and
    ``stannis (compute only)`` where it would, did it not know of the exchange; several have commas between them.
    """

    figures: Scaling
    chosen: str


class DisturbanceFigures(msgspec.Struct, frozen=True):
    """One node loses a share of its speed for a while.

    Attributes:
        model: of the zoo.
        node: ``host``, or a drive's name.
        lost: f, the share of its speed.
        share: h, its share of the global batch.
        before: records per array second, undisturbed.
        during_without: disturbed, batches left as they are.
        during_with: disturbed, HyperTune on; from the first slow step, its delay and cost included.
        retuned: the same after its last retune of the disturbance.
        ceiling: (1 - f h) x before: no other batch grows, this one loses what its node lost.
        after: undisturbed again, HyperTune on; from the first fast step on.
        recovered: the same after its last retune.
        detect_steps: slow steps until new batches are in force; null if none are.
        recover_steps: fast steps until new batches are in force; null if none are.
        before_joules, during_without_joules, during_with_joules, after_joules: per record, of the whole server.
        basis: of all this.
    """

    model: str
    node: str
    lost: float
    share: float
    before: float
    during_without: float
    during_with: float
    retuned: float
    ceiling: float
    after: float
    recovered: float
    detect_steps: int | None
    recover_steps: int | None
    before_joules: float
    during_without_joules: float
    during_with_joules: float
    after_joules: float
    basis: str = SIMULATED


class Beside(msgspec.Struct, frozen=True):
    """A published headline beside ours with all drives, over the band and the models.

    `figure` is ``speedup``, ``energy_factor`` or ``traffic``: bytes over the host's link per record over those of the
    baseline. `ours_low` to `ours_high` are the smallest and the largest of them; `ours_middle` is the mean over the
    models in the middle of the band.
    """

    source: str
    figure: str
    published: float
    ours_low: float
    ours_middle: float
    ours_high: float
    published_basis: str = PUBLISHED_BASIS
    basis: str = SIMULATED


class HypertuneReport(msgspec.Struct, frozen=True):
    """`csd-emu reproduce hypertune`.

    Attributes:
        server: host and drives.
        clock: of all seconds but `wall_seconds`.
        beside: published headlines and ours.
        needed: which watts published results leave to each drive, against those assumed; middle of the band.
        inputs: what each model's figures rest on.
        scaling: speed, energy and traffic against the number of computing drives, over the band.
        batches: what the batch does to it.
        disturbed: the disturbance experiment.
        notes: what to know when reading all this.
        assumed: figures without a source.
        files: that were written.
        wall_seconds: what it took.
    """

    server: str
    clock: str
    beside: list[Beside]
    needed: list[PublishedCheck]
    inputs: list[ModelInput]
    scaling: list[Scaling]
    batches: list[BatchEffect]
    disturbed: list[DisturbanceFigures]
    notes: list[str]
    assumed: list[AssumedFigure]
    files: list[str]
    wall_seconds: float
