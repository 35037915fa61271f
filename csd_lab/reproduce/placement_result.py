"""Structure of what `csd-emu reproduce placement` prints; see docs/reproduce.md.

`basis` says where a figure comes from: ``published``, ``derived`` (arithmetic over the model's bytes), ``counted``
(encoded frames), ``simulated`` (timeline over emulated seconds) or ``wall`` (this machine's clock, scaled models on
paced processes). Nothing was measured on a real drive.
"""

from __future__ import annotations

import msgspec

from csd_lab.reproduce.hypertune_result import SIMULATED
from csd_lab.reproduce.verdict import HeadlineVerdict
from host.core.device_time import WALL


class Traffic(msgspec.Struct, frozen=True):
    """What one drive's step puts on the wire, both ways, for a model at its full size.

    Attributes:
        model: of the zoo.
        batch: records per step and drive.
        layer: that the host begins with: the first of the linear layers at the end.
        parameters: of the model.
        moved_parameters: share of the exchanged bytes that the host keeps.
        moved_compute: share of the arithmetic that it gets.
        crossing_bytes: of one record, one way.
        whole_bytes: with nothing moved, as the formula has it.
        cut_bytes: with the cut.
        ratio: of the two.
        counted_ratio: of the frames that were encoded; null where none were.
        derived_ratio: what the design notes work out from the published sizes; null where they do not.
    """

    model: str
    batch: int
    layer: str
    parameters: int
    moved_parameters: float
    moved_compute: float
    crossing_bytes: int
    whole_bytes: float
    cut_bytes: float
    ratio: float
    counted_ratio: float | None
    derived_ratio: float | None


class Placing(msgspec.Struct, frozen=True):
    """A model on so many drives behind a link, and where it is cut.

    Attributes:
        model: of the zoo.
        drives: that train; each has `batch` records.
        batch: of each.
        link_bytes_per_second: of the host's side, each way.
        wire_over_compute: seconds of all bytes of one direction over seconds that a drive computes.
        layer: that the host begins with; null: every layer stays.
        unmoved_seconds: of a step with nothing moved.
        step_seconds: of a step with the cut.
        speedup: of the two.
        host_seconds: that the host's layers take.
        basis: of all this.
    """

    model: str
    drives: int
    batch: int
    link_bytes_per_second: float
    wire_over_compute: float
    layer: str | None
    unmoved_seconds: float
    step_seconds: float
    speedup: float
    host_seconds: float
    basis: str = SIMULATED


class RanPlacement(msgspec.Struct, frozen=True):
    """Real steps of a scaled model, with and without a cut; medians on this machine's clock.

    Attributes:
        model: a model of the same shape with far fewer channels.
        drives: native ones, behind a shaped link; each has `batch` records.
        batch: of each.
        steps: of each median.
        link_bytes_per_second: of the host's side, each way.
        wire_over_compute: seconds of all bytes of one direction over seconds that a drive is paced to compute.
        layer: that the host begins with; null: every layer stays.
        unmoved_seconds: of a step with nothing moved.
        step_seconds: of a step with the cut.
        speedup: of the two.
        foretold_speedup: what the decision expected of it.
        basis: of all this but what was foretold.
    """

    model: str
    drives: int
    batch: int
    steps: int
    link_bytes_per_second: float
    wire_over_compute: float
    layer: str | None
    unmoved_seconds: float
    step_seconds: float
    speedup: float
    foretold_speedup: float | None
    basis: str = WALL


class PublishedPlacement(msgspec.Struct, frozen=True):
    """A published headline beside ours, over all models, drives and links.

    Attributes:
        source: who published it.
        published: what: a range where it is one.
        ours_low, ours_high: the smallest and the largest speed-up of ours.
        ours_at: the case of the largest.
        basis: of ours.
    """

    source: str
    published: str
    ours_low: float
    ours_high: float
    ours_at: str
    basis: str = SIMULATED


class PlacementReport(msgspec.Struct, frozen=True):
    """`csd-emu reproduce placement`.

    Attributes:
        clock: of all seconds but `wall_seconds` and those of `ran`.
        overlapped: whether the exchange overlaps computing in `placing`.
        beside: published headlines and ours.
        traffic: bytes of full-size models.
        placing: which cut is chosen, and what it wins.
        notes: what to know when reading all this.
        files: that were written.
        wall_seconds: what it took.
        ran: scaled models on the clock ``wall``; none unless it was asked for.
        verdicts: on every headline.
    """

    clock: str
    overlapped: bool
    beside: list[PublishedPlacement]
    traffic: list[Traffic]
    placing: list[Placing]
    notes: list[str]
    files: list[str]
    wall_seconds: float
    ran: list[RanPlacement] = []
    verdicts: list[HeadlineVerdict] = []
