"""Summary of a run, in one object: what `csd-emu run --json` prints and `summary.json` holds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from csd_emu.util.renamed import Renamed, old_name_of, with_new_keys
from host.core.failures import Failure
from host.core.figure_bands import Band
from host.core.records import RoundRecord
from host.core.run_stats import RunStats
from host.core.sampling.sampling_record import SamplingRecord

INSTRUCTIONS = "instructions"
FEDERATED, SYNC = "federated", "sync"


class Summary(Renamed, frozen=True):
    """How a run ended. `array_seconds` is the array's composed time, `energy_joules` the whole array's energy.

    `core_model` says what a nanosecond of counted or modelled seconds stands for: one of `instructions` or of `cycles`.
    `steps` are those of the array in a synchronous run, of all drives together in a federated one. `retunes` are the
    times that batch sizes were changed, `chosen` the devices that a planner chose to train (``2 newport + host``), null
    without one. Of one of several servers all figures are its own but for accuracy, steps, seconds and
    `servers_samples`, the records of all; `servers` are those that took part in any step, null for one that is alone.
    `accuracy` is null if no round has ended, or records have no classes; `test_loss` and `metrics` are the job's
    others, after the last round, null where one is no finite number. `failures` are those of the user's own code, at
    most 33 different ones: a run with any has failed, and has not `reached` what it should. `refusals` are device ->
    contributions that were refused, as far as the records list them (at most 30 in a minute). Rates per record are over
    all records trained on in time, repetitions counted; 0 if there are none. `bands` are figure -> the least and the
    most that it may be by the bands of the profiles' figures (docs/bands.md), that of the array's mean ``watts`` among
    them, and `device_bands` those of ``device_seconds`` and ``energy_joules`` by node; empty if they are not known.
    `sampling` says how far seconds on the clock `sampled` rest on counted steps; null on any other.
    """

    array: str
    engine: str
    clock: str
    model: str
    rounds: int
    accuracy: float | None
    target_accuracy: float | None
    reached: bool
    samples: int
    device_seconds: dict[str, float]
    records_per_device_second: float
    array_seconds: float
    energy_joules: float
    host_link_bytes: int
    wall_seconds: float
    run_directory: str
    seed: int
    mode: str = FEDERATED
    core_model: str = INSTRUCTIONS
    steps: int = 0
    retunes: int = 0
    records_per_array_second: float = 0.0
    joules_per_record: float = 0.0
    host_link_bytes_per_record: float = 0.0
    chosen: str | None = None
    servers: list[str] | None = None
    servers_samples: int | None = None
    failures: list[Failure] = msgspec.field(default_factory=list)
    refusals: dict[str, int] = msgspec.field(default_factory=dict)
    bands: dict[str, Band] = msgspec.field(default_factory=dict)
    device_bands: dict[str, dict[str, Band]] = msgspec.field(default_factory=dict)
    sampling: SamplingRecord | None = None
    metrics: dict[str, float | None] = msgspec.field(default_factory=dict)
    test_loss: float | None = None
    images_per_device_second: Annotated[float, old_name_of("records_per_device_second")] = 0.0
    images_per_array_second: Annotated[float, old_name_of("records_per_array_second")] = 0.0
    joules_per_image: Annotated[float, old_name_of("joules_per_record")] = 0.0
    host_link_bytes_per_image: Annotated[float, old_name_of("host_link_bytes_per_record")] = 0.0

    @property
    def clock_text(self) -> str:
        """The clock for people, with the core model where it is not that of instructions."""
        return name_clock(self.clock, self.core_model)


def name_clock(clock: str, core_model: str) -> str:
    """Return a clock for people, with the core model where it is not that of instructions."""
    return clock if core_model == INSTRUCTIONS or clock == "wall" else f"{clock}, {core_model}"


def decode_summary(content: bytes) -> Summary:
    """Return the summary in a summary.json, also one of the release before.

    Raises:
        msgspec.MsgspecError: it is none.
        UnicodeDecodeError, RecursionError: likewise.
    """
    return msgspec.convert(with_new_keys(msgspec.json.decode(content)), Summary)


def format_accuracy(accuracy: float | None) -> str:
    """Return an accuracy for people, also of a run without a round, or of records without classes."""
    return "unknown" if accuracy is None else f"{accuracy:.4f}"


def summarise(rounds: Iterable[RoundRecord], mode: str | None = None, **facts: Any) -> Summary:
    """Return the summary of the `rounds`, which are gone through once; `facts` are the fields that they do not know.

    Without a `mode` a run with steps of its own is synchronous.
    """
    stats = RunStats.of(rounds)
    mode = mode or (SYNC if stats.steps else FEDERATED)
    return Summary(
        clock=stats.last.clock if stats.last else "",
        rounds=stats.rounds,
        accuracy=stats.last.accuracy if stats.last and not math.isnan(stats.last.accuracy) else None,
        metrics={k: v if math.isfinite(v) else None for k, v in stats.last.metrics.items()} if stats.last else {},
        test_loss=stats.last.test_loss if stats.last and math.isfinite(stats.last.test_loss) else None,
        samples=stats.samples,
        device_seconds=stats.device_seconds,
        records_per_device_second=stats.records_per_device_second,
        array_seconds=stats.array_seconds,
        energy_joules=stats.energy_joules,
        host_link_bytes=stats.link_bytes,
        mode=mode,
        steps=stats.steps if mode == SYNC else stats.device_steps,
        retunes=stats.retunes,
        records_per_array_second=stats.records_per_array_second,
        joules_per_record=stats.joules_per_record,
        bands=stats.all_bands,
        device_bands=stats.device_bands,
        sampling=stats.sampling,
        host_link_bytes_per_record=stats.link_bytes_per_record,
        servers=list(stats.servers) if stats.servers else None,
        servers_samples=stats.servers_samples if stats.servers else None,
        **facts,
    )
