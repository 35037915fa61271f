"""Structure of what `csd-emu reproduce hypertune` prints; see docs/reproduce.md.

`basis` says where a figure comes from: ``published``, ``emulated`` (counted in a virtual machine, scaled to the drive),
or ``simulated`` (timeline and power model over emulated seconds and the inputs of `blind_inputs.yaml`). Nothing was
measured on a real drive.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from csd_emu.util.renamed import Renamed, old_name_of
from csd_lab.reproduce.verdict import HeadlineVerdict
from host.monitoring.report.comparison import AssumedFigure, PublishedCheck

EMULATED, SIMULATED, PUBLISHED_BASIS = "emulated", "simulated", "published"


class ModelInput(Renamed, frozen=True):
    """What a model's figures rest on.

    Attributes:
        model: of the zoo, at full size.
        input_shape: (channels, height, width).
        measured_batches: that calibration has run; the largest one is computed at once, more are accumulated.
        drive_records_per_second: of one drive at that batch, forward and backward.
        peak_memory_bytes: of it.
        state_bytes: of weights and buffers, which cross the link each way and step.
        record_bytes: of one image and its label.
        batch_statistics: whether batch normalisation sees only what is computed at once.
        basis: of the rate.
        cycles: per instruction, ``measured`` by the core model or ``assumed``.
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
    cycles: str = ""
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


class Influence(msgspec.Struct, frozen=True):
    """What one input makes of a prediction, all others at their values: the lower and the higher result."""

    input: str
    low: float
    high: float


class Prediction(msgspec.Struct, frozen=True):
    """A figure of one model, predicted from `blind_inputs.yaml` and a drive's cycles; all drives compute.

    Attributes:
        model: of the zoo.
        figure: ``host_rate`` and ``drive_rate`` (records a second), ``ratio`` of the two, ``speedup``,
            ``energy_factor``, or ``traffic``, bytes over the host's link per record over those of the baseline.
        low, middle, high: the band.
        cycles: per instruction of the drive, ``measured`` or ``assumed``.
        influences: of inputs, those that matter most first.
        basis: of all this.
    """

    model: str
    figure: str
    low: float
    middle: float
    high: float
    cycles: str
    influences: list[Influence]
    basis: str = SIMULATED


class TrafficNeed(msgspec.Struct, frozen=True):
    """What it takes that the array moves 68 % fewer bytes over the host's link (`csd_lab.reproduce.traffic`).

    Attributes:
        model: of the zoo.
        case: who trains.
        host_share: h, of the records.
        exchange_bytes: E, weights and gradients of one drive and step.
        record_bytes: r, of one image and its label.
        needed_bytes: the least b r; null if none is enough.
        drive_batch: the least batch of a drive, with records of `record_bytes`; null if none is enough.
        global_batch: of all drives and the host then.
        at_batch: a drive's batch, by STANNIS.
        at_batch_record_bytes: the least size of a record with that batch; null if none is enough.
        holds: with a global batch up to 32,768, or with records up to 10 MB.
    """

    model: str
    case: str
    host_share: float
    exchange_bytes: int
    record_bytes: int
    needed_bytes: float | None
    drive_batch: int | None
    global_batch: int | None
    at_batch: int
    at_batch_record_bytes: float | None
    holds: bool


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
    """A published headline beside the predicted band, as releases before have it; `HeadlineVerdict` says more.

    `figure` is ``speedup``, ``energy_factor`` or ``traffic``: bytes over the host's link per record over those of the
    baseline.
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
        verdicts: on every headline.
        predictions: per model, which verdicts rest on.
        traffic: at which record size and batch the published traffic holds.
        inputs_frozen: when the inputs of the predictions were, YYYY-MM-DD.
        inputs_sha256: of their file.
        core_model: that drives' seconds are of.
        server: host and drives.
        clock: of all seconds but `wall_seconds`.
        beside: published headlines and ours.
        needed: which watts published results leave to each drive, against those assumed; middle of the band.
        inputs: what each model's figures rest on.
        scaling: speed, energy and traffic against the number of computing drives, over the predicted band of what a
            host is worth.
        batches: what the batch does to it.
        disturbed: the disturbance experiment.
        notes: what to know when reading all this.
        assumed: figures without a source.
        files: that were written.
        wall_seconds: what it took.
    """

    verdicts: list[HeadlineVerdict]
    predictions: list[Prediction]
    traffic: list[TrafficNeed]
    inputs_frozen: str
    inputs_sha256: str
    core_model: str
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
