"""PromQL that answers what users ask: documented in docs/metrics.md, held against records by the bench `metrics`.

A `Ratio` is also what recording rules record (`csd_lab.generate.prometheus_rules`): there it keeps the labels of
the scraped host, so that drives of one name in two arrays are two, and names its clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from host.monitoring.metrics.metric_names import METRICS

# Labels that Prometheus itself gives every series of a host.
TARGET = ("job", "instance")
_CLOCKED = tuple(metric.name for metric in METRICS if "clock" in metric.labels)
# Their clock is the array's, that of others is a drive's.
_ARRAY_CLOCK = ("csd_energy_joules", "csd_device_seconds", "csd_round_duration_seconds", "csd_step_duration_seconds")


@dataclass(frozen=True)
class Query:
    """A question and its expression; `WINDOW` in it stands for the range, such as ``5m``."""

    question: str
    expression: str

    def over(self, window: str) -> str:
        """Return the expression over a range."""
        return self.expression.replace("WINDOW", window)


@dataclass(frozen=True)
class Ratio(Query):
    """The rate of one counter over that of another: the wall time in which both were scraped cancels out.

    Attributes:
        above, below: the counters' names.
        by: labels that the answer has, ``clock`` aside.
    """

    above: str = ""
    below: str = ""
    by: tuple[str, ...] = ()

    @property
    def clocked(self) -> bool:
        """Whether it is divided by something that has a clock, which then names the answer's."""
        return self.below.startswith(_CLOCKED)

    def recorded(self, window: str) -> str:
        """Return the expression of the recording rule.

        It keeps job and instance, and the clock of the seconds below; it has no answer where nothing moved in the
        window, and none for what is not scraped now: a drive that is gone, a host that has ended.
        """
        by = (*TARGET, *self.by)
        clock = ("clock",) if self.clocked else ()
        # Where both have the array's clock, one is never divided by seconds of another.
        both = clock if self.above.startswith(_ARRAY_CLOCK) and self.below.startswith(_ARRAY_CLOCK) else ()
        match = f" on ({', '.join(by)}) group_right ()" if clock and not both else ""
        above = f"sum by ({', '.join(by + both)}) (rate({self.above}[{window}]))"
        below = f"(sum by ({', '.join(by + clock)}) (rate({self.below}[{window}])) > 0)"
        there = "".join(f" and on ({', '.join(by)}) {counter}" for counter in (self.above, self.below))
        return f"{above} /{match} {below}{there}"


def _ratio(question: str, above: str, below: str, by: Sequence[str] = ()) -> Ratio:
    group = f" by ({', '.join(by)}) " if by else ""
    expression = f"sum{group}(rate({above}[WINDOW])) / sum{group}(rate({below}[WINDOW]))"
    return Ratio(question, expression, above, below, tuple(by))


_ARRAY_SECONDS = "csd_round_duration_seconds_sum"
_SAMPLES, _JOULES = "csd_train_samples_total", "csd_energy_joules_total"
RECORDS_PER_DEVICE_SECOND = _ratio(
    "records per device second of each drive, as in the run record",
    *(_SAMPLES, "csd_compute_seconds_total", ["device"]),
)
MEAN_RECORDS_PER_DEVICE_SECOND = _ratio("the same, as a mean over the drives", _SAMPLES, "csd_compute_seconds_total")
RECORDS_PER_ARRAY_SECOND = _ratio(
    "records per second of the array: flash, link and waiting included", _SAMPLES, _ARRAY_SECONDS
)
RECORDS_PER_WALL_SECOND = _ratio(
    "records per wall second of the rounds: what this machine emulates; it says nothing of a drive",
    *(_SAMPLES, "csd_wall_seconds_total"),
)
WATTS = _ratio("watts of each drive and of the host", _JOULES, "csd_device_seconds_total", ["device"])
ARRAY_WATTS = _ratio("watts of the whole array", _JOULES, _ARRAY_SECONDS)
JOULES_PER_RECORD = _ratio("joules per record, host included", _JOULES, _SAMPLES)
DEVICE_JOULES_PER_RECORD = _ratio("joules per record of each drive alone", _JOULES, _SAMPLES, ["device"])
JOULES = Query("joules of each drive and of the host, since the run began", "sum by (device) (csd_energy_joules_total)")
STEP_SECONDS = _ratio(
    "device seconds per step and phase",
    *("csd_train_step_duration_seconds_sum", "csd_train_step_duration_seconds_count", ["device", "phase"]),
)
BUSY_RATIO = _ratio(
    "share of its time in which a drive computes",
    *("csd_compute_seconds_total", "csd_device_seconds_total", ["device"]),
)
LINK_BYTES_PER_RECORD = _ratio("bytes over the host link per record", "csd_host_link_bytes_total", _SAMPLES)
LINK_BYTES_PER_SECOND = _ratio(
    "bytes per device second over each drive's link",
    "csd_host_link_bytes_total",
    "csd_device_seconds_total",
    ["device"],
)
LINK_RATIO = _ratio(
    "share of its time in which a drive moves weights or gradients",
    *("csd_link_seconds_total", "csd_device_seconds_total", ["device"]),
)
HOST_COMMANDS_PER_SECOND = _ratio(
    "commands of its host that each drive ends in a second",
    *("csd_host_commands_total", "csd_device_seconds_total", ["device"]),
)
WALL_PER_ARRAY_SECOND = _ratio(
    "wall seconds per second of the array: what emulation costs", "csd_wall_seconds_total", _ARRAY_SECONDS
)
ARRAY_STEP_SECONDS = _ratio(
    "array seconds per synchronous step", "csd_step_duration_seconds_sum", "csd_step_duration_seconds_count"
)
SERVER_WAIT_RATIO = _ratio(
    "share of the array's time in which a server waits for slower ones", "csd_server_wait_seconds_total", _ARRAY_SECONDS
)
ALLREDUCE_RATIO = _ratio(
    "share of the array's time in which servers add up gradients", "csd_allreduce_seconds_total", _ARRAY_SECONDS
)
ALLREDUCE_BYTES_PER_SECOND = _ratio(
    "bytes per second of the array that a server sends to others", "csd_allreduce_bytes_total", _ARRAY_SECONDS
)
SERVER_RECORDS = Query(
    "records per second of each server, and by name whose they are",
    "sum by (job, instance) (rate(csd_train_samples_total[WINDOW])) / sum by (job, instance) "
    "(rate(csd_round_duration_seconds_sum[WINDOW])) * on (job, instance) group_left (server) csd_server_info",
)
SLOWER = Query("devices that are slower than their table", "csd_device_slowdown_ratio > 1.1")
LOST = Query("drives without a session", "csd_device_up == 0")

QUERIES: tuple[Query, ...] = (
    *(RECORDS_PER_DEVICE_SECOND, MEAN_RECORDS_PER_DEVICE_SECOND, RECORDS_PER_ARRAY_SECOND, RECORDS_PER_WALL_SECOND),
    *(WATTS, ARRAY_WATTS, JOULES_PER_RECORD, DEVICE_JOULES_PER_RECORD, JOULES),
    *(STEP_SECONDS, BUSY_RATIO, LINK_BYTES_PER_RECORD, LINK_BYTES_PER_SECOND, LINK_RATIO, HOST_COMMANDS_PER_SECOND),
    *(WALL_PER_ARRAY_SECOND, ARRAY_STEP_SECONDS),
    *(SERVER_RECORDS, SERVER_WAIT_RATIO, ALLREDUCE_RATIO, ALLREDUCE_BYTES_PER_SECOND, SLOWER, LOST),
)
