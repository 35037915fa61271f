"""Answer of `/api/state`: all that the live page shows, as one JSON object. Version: `VERSION`.

Seconds of drives and of the array are device time, of the clock that is named beside them; what is named ``wall`` is
the cost of emulation. Numbers that are not known, or not finite, are null.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from csd_emu.util.renamed import Renamed, old_name_of
from host.core.failures import Failure
from host.core.figure_bands import Band
from host.monitoring.charts.chart import Chart
from host.monitoring.charts.chart_timeline import Timeline
from host.monitoring.decision_text import Knob

VERSION = 1
STARTING: Final = "starting"
TRAINING: Final = "training"
FINISHED: Final = "finished"
Phase = Literal["starting", "training", "finished"]


class RunNow(msgspec.Struct, frozen=True, kw_only=True):
    """What stays the same in a run, and where it stands.

    Attributes:
        array, engine, model, mode: what trains what, and how.
        phase: drives start, rounds are trained, or all are done.
        clock: of the array's seconds; empty before training begins.
        rounds: how many are planned at most.
        target_accuracy: at which the run ends early; null without one.
        run_directory: what it writes into; empty before there is one.
        program: version of csd-emu.
        changed_unix_seconds: when anything last happened, by the host's own calendar.
    """

    array: str
    engine: str
    model: str
    mode: str
    phase: Phase
    clock: str
    rounds: int
    target_accuracy: float | None
    run_directory: str
    program: str
    changed_unix_seconds: float


class _Figures(Renamed, frozen=True, kw_only=True):
    """What a round and the run so far both have; the run's accuracy, losses, rates and watts are its last round's.

    Attributes:
        round: its number; of the run, rounds done.
        accuracy, test_loss, train_loss: after the round.
        records_per_device_second: mean rate of a device.
        records_per_array_second: of the whole array, flash, link and waiting included; null without array seconds.
        array_seconds: device time of the round, or of all rounds.
        wall_seconds: the cost of emulating that.
        watts: of everything in the array; modelled.
        joules: of everything in the round, or in all rounds; modelled.
        bands: the least and the most that ``array_seconds``, ``device_seconds``, ``energy_joules``, rates and watts may
            be by the bands of the profiles' figures; empty if they are not known.
    """

    round: int = 0
    accuracy: float | None = None
    test_loss: float | None = None
    train_loss: float | None = None
    records_per_device_second: float | None = None
    records_per_array_second: float | None = None
    array_seconds: float = 0.0
    wall_seconds: float = 0.0
    watts: float | None = None
    joules: float = 0.0
    bands: dict[str, Band] = msgspec.field(default_factory=dict)
    images_per_device_second: Annotated[float | None, old_name_of("records_per_device_second")] = None
    images_per_array_second: Annotated[float | None, old_name_of("records_per_array_second")] = None


class RunSoFar(_Figures, frozen=True, kw_only=True):
    """The run so far.

    Attributes:
        steps: synchronous steps done; 0 in a federated run.
        records: records trained on in time.
        last_array_seconds, last_wall_seconds: of the last round.
        machine_joules: that this machine's processors drew meanwhile (wall); null without counters.
        sampling: how far its seconds rest on counted steps, for people; empty on other clocks than ``sampled``.
        last_step: the ``devices``, ``layers``, ``batches`` and ``slices`` of it, as tuners had decided; an
            epoch's last step has fewer records. Empty in a federated run.
    """

    steps: int = 0
    records: int = 0
    last_array_seconds: float | None = None
    last_wall_seconds: float | None = None
    machine_joules: float | None = None
    sampling: str = ""
    last_step: dict[Knob, str] = msgspec.field(default_factory=dict)
    images: Annotated[int, old_name_of("records")] = 0


class HostIoNow(msgspec.Struct, frozen=True, kw_only=True):
    """Host I/O of a drive in its last round: commands that ended, their 99th percentile, and how many are in it."""

    commands_per_second: float | None
    p99_seconds: float | None
    queue_depth: float | None


class DriveNow(Renamed, frozen=True, kw_only=True):
    """A drive, or the ``host`` if it trains.

    Attributes:
        name, kind, profile: what it is; kind and profile are empty before it has said hello.
        state: ``defined``, ``booting``, ``ready``, ``training`` or ``lost``.
        clock: of its device seconds.
        rounds: from which it returned in time.
        records: records trained on in time.
        records_per_device_second: over its compute seconds of the last round; null if it did not take part in time.
        compute_seconds: device seconds in which it computed, in time.
        batch_size: records per step.
        watts: mean over the last round's array seconds; modelled.
        joules: charged to it so far; modelled.
        slowdown: observed over expected seconds of its last synchronous step; null without a table.
        straggler: its last part came too late.
        host_io: what its host had of it in the last round; null of a drive that serves none.
        bands: of ``device_seconds``, here `compute_seconds`, ``energy_joules``, here `joules`, and `watts`; empty if
            not known.
    """

    name: str
    kind: str
    profile: str
    state: str
    clock: str
    rounds: int
    records: int
    records_per_device_second: float | None
    compute_seconds: float
    batch_size: int | None
    watts: float | None
    joules: float
    slowdown: float | None
    straggler: bool
    host_io: HostIoNow | None = None
    bands: dict[str, Band] = msgspec.field(default_factory=dict)
    images: Annotated[int, old_name_of("records")] = 0
    images_per_device_second: Annotated[float | None, old_name_of("records_per_device_second")] = None


class EventNow(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened; `number` counts from 1 and is never used again in a run."""

    number: int
    device: str
    what: str
    detail: str
    wall_seconds: float
    array_seconds: float


class RoundNow(_Figures, frozen=True, kw_only=True):
    """A round, for tables. `drives` returned in time; `batch_size` is the middle one of theirs."""

    drives: int
    batch_size: int | None


class SeriesNow(msgspec.Struct, frozen=True):
    """A curve, thinned: `x` are array seconds, null in `y` is a gap."""

    x: list[float]
    y: list[float | None]


class PageState(msgspec.Struct, frozen=True, kw_only=True):
    """All that the page shows.

    Attributes:
        version: of this object's shape.
        revision: grows with every change; of one `instance` of the host's process.
        failures: of the user's code, in the order in which they came first.
        events: the last ones, newest first.
        rounds: the last ones, newest first.
        series: what the charts draw, by name; those without points are left out. For one release.
        batches: device -> its batch over time, of those that changed most often. For one release.
        hidden_batches: how many drives have batches that are not in `batches`. For one release.
        timeline: of the last rounds or steps; null before there are any.
        charts: over the array's seconds; their panes have no curves before there are points.
    """

    version: int
    instance: str
    revision: int
    run: RunNow
    totals: RunSoFar
    states: dict[str, int]
    drives: list[DriveNow]
    failures: list[Failure]
    events: list[EventNow]
    rounds: list[RoundNow]
    series: dict[str, SeriesNow]
    batches: dict[str, SeriesNow]
    hidden_batches: int
    timeline: Timeline | None
    charts: list[Chart]
