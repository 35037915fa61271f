"""Prometheus' recording rules and alerts; ``python -m csd_lab.generate.metrics_files`` writes them to images."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from csd_lab.generate import promql_queries as queries
from csd_lab.generate.promql_queries import Ratio
from host.monitoring.metrics import metric_names as names

# Behind the name of the alert in small letters: a section of docs/alerts.md each.
RUNBOOKS = "docs/alerts.md#"
FOLDER = Path(__file__).parents[2] / "images" / "prometheus" / "rules"
# What is recorded moves when a round ends, so a window must be longer than any round takes on the wall clock.
WINDOW = "10m"
# How often rules are evaluated.
INTERVAL = "5s"
JOB = "csd-emu"
SLOW_RATIO = 0.8
_DRIVE = ", ".join((*queries.TARGET, "device"))
_HOST = ", ".join(queries.TARGET)
_TRAINING = f'{names.DEVICE_STATE.name}{{state="training"}}'
# Behind the last round nobody is late or slow, whatever is still in the window. It is the array that must train, not
# the drive: one that is not chosen for every round would flap.
_WHILE_ANY_TRAINS = f"and on ({_HOST}) {_TRAINING} == 1"
_AT_SERVER = f"* on ({_HOST}) group_left (server) {names.SERVER_INFO.name}"
REFUSED = f"sum by ({_DRIVE}) ({names.REJECTED.name})"
REFUSED_BEFORE = f"sum by ({_DRIVE}) ({names.REJECTED.name} offset {WINDOW})"
_WHILE_IT_IS_THERE = f"and on ({_DRIVE}) {names.DEVICE_UP.name} == 1 {_WHILE_ANY_TRAINS}"


@dataclass(frozen=True)
class Recorded:
    """A recording rule.

    Attributes:
        name: `level:metric:operations`; the level is what labels it has beside job, instance and clock.
        expression: in PromQL.
        meaning: for people.
    """

    name: str
    expression: str
    meaning: str


@dataclass(frozen=True)
class Alert:
    """An alert.

    Attributes:
        name: in Prometheus.
        expression: in PromQL.
        wait: for so long it must be true before it fires.
        severity: ``critical`` if training has stopped, else ``warning``.
        summary: one line, a template.
        description: what it means and what to do, a template.
        meaning: when it fires, for the documentation.
    """

    name: str
    expression: str
    wait: str
    severity: str
    summary: str
    description: str
    meaning: str

    @property
    def runbook(self) -> str:
        """Where it is written what to do."""
        return f"{RUNBOOKS}{self.name.lower()}"


def record(ratio: Ratio, meaning: str | None = None) -> Recorded:
    """Return the rule that records a ratio, named for its counters."""
    level = "_".join(ratio.by) or "array"
    above, below = _stem(ratio.above), _stem(ratio.below)
    if ratio.above.endswith("_sum") and ratio.below.endswith("_count"):
        name = f"{level}:{above}:mean_rate{WINDOW}"
    else:
        name = f"{level}:{above}_per_{below.removeprefix('csd_')}:ratio_rate{WINDOW}"
    return Recorded(name, ratio.recorded(WINDOW), meaning or ratio.question)


def _stem(counter: str) -> str:
    for ending in ("_total", "_sum", "_count"):
        counter = counter.removesuffix(ending)
    return counter


def at_server(rule: Recorded, meaning: str) -> Recorded:
    """Return the rule that gives an array's figure the name of its server."""
    return Recorded(rule.name.replace("array:", "server:", 1), f"{rule.name} {_AT_SERVER}", meaning)


def at_hypervisor(rule: Recorded, meaning: str) -> Recorded:
    """Return the rule that adds up a figure of drives over each hypervisor's."""
    level, metric, operations = rule.name.split(":")
    join = f'{rule.name} * on ({_DRIVE}) group_left (hypervisor) {names.DEVICE_INFO.name}{{hypervisor!=""}}'
    expression = f"sum by ({_HOST}, hypervisor, clock) ({join})"
    return Recorded(f"{level.replace('device', 'hypervisor')}:{metric}:sum_{operations}", expression, meaning)


DEVICE_RECORDS = record(queries.RECORDS_PER_DEVICE_SECOND)
WATTS = record(queries.WATTS)
BUSY = record(queries.BUSY_RATIO)
DEVICE_JOULES_PER_RECORD = record(queries.DEVICE_JOULES_PER_RECORD)
LINK_BYTES_PER_SECOND = record(queries.LINK_BYTES_PER_SECOND)
LINK_RATIO = record(queries.LINK_RATIO)
STEP_SECONDS = record(queries.STEP_SECONDS)
ARRAY_RECORDS = record(queries.RECORDS_PER_ARRAY_SECOND)
WALL_RECORDS = record(queries.RECORDS_PER_WALL_SECOND)
ARRAY_WATTS = record(queries.ARRAY_WATTS)
JOULES_PER_RECORD = record(queries.JOULES_PER_RECORD)
LINK_BYTES_PER_RECORD = record(queries.LINK_BYTES_PER_RECORD)
WALL_PER_ARRAY_SECOND = record(queries.WALL_PER_ARRAY_SECOND)
ARRAY_STEP_SECONDS = record(queries.ARRAY_STEP_SECONDS)
OF_CALIBRATION = Recorded(
    f"device:csd_train_samples_per_calibrated_records:ratio_rate{WINDOW}",
    f"{DEVICE_RECORDS.name} / on ({_DRIVE}, clock) avg_over_time({names.CALIBRATED_RATE.name}[{WINDOW}])",
    "records per device second of each drive as a share of what its calibration table says; 1 is as it says",
)
OLD_OF_CALIBRATION = Recorded(
    f"device:csd_train_samples_per_calibrated_images:ratio_rate{WINDOW}",
    OF_CALIBRATION.name,
    f"deprecated: the old name of `{OF_CALIBRATION.name}`, for one release",
)
SERVER_WAIT = record(queries.SERVER_WAIT_RATIO)
ALLREDUCE = record(queries.ALLREDUCE_RATIO)
ALLREDUCE_BYTES = record(queries.ALLREDUCE_BYTES_PER_SECOND)
SERVER_RECORDS = at_server(ARRAY_RECORDS, "records per second of each server")
SERVER_WATTS = at_server(ARRAY_WATTS, "watts of each server and its drives")
SERVER_JOULES_PER_RECORD = at_server(JOULES_PER_RECORD, "joules per record of each server and its drives")
SERVER_JOULES = Recorded(
    "server:csd_energy_joules:sum",
    f"sum by ({_HOST}, clock) ({names.ENERGY_JOULES.name}) {_AT_SERVER}",
    "joules of each server and its drives, since its run began",
)
SERVER_WAIT_SHARE = at_server(SERVER_WAIT, "share of the array's time in which each server waits for slower ones")
SERVER_ALLREDUCE = at_server(ALLREDUCE, "share of the array's time in which each server adds up gradients with others")
SERVER_ALLREDUCE_BYTES = at_server(ALLREDUCE_BYTES, "bytes per second of the array that each server sends to others")
HYPERVISOR_RECORDS = at_hypervisor(DEVICE_RECORDS, "records per device second of each hypervisor's drives, added up")
HYPERVISOR_WATTS = at_hypervisor(WATTS, "watts of each hypervisor's drives, added up")
# What only a run of several servers has, and only an array of virtual machines.
OF_SERVERS = (SERVER_WAIT, ALLREDUCE, ALLREDUCE_BYTES, SERVER_WAIT_SHARE, SERVER_ALLREDUCE, SERVER_ALLREDUCE_BYTES)
OF_HYPERVISORS = (HYPERVISOR_RECORDS, HYPERVISOR_WATTS)
RECORDED: tuple[Recorded, ...] = (
    *(DEVICE_RECORDS, OF_CALIBRATION, OLD_OF_CALIBRATION, WATTS, BUSY, DEVICE_JOULES_PER_RECORD),
    *(LINK_BYTES_PER_SECOND, LINK_RATIO, STEP_SECONDS),
    *(ARRAY_RECORDS, WALL_RECORDS, ARRAY_WATTS, JOULES_PER_RECORD, LINK_BYTES_PER_RECORD, WALL_PER_ARRAY_SECOND),
    ARRAY_STEP_SECONDS,
    *(SERVER_RECORDS, SERVER_WATTS, SERVER_JOULES_PER_RECORD, SERVER_JOULES),
    *OF_SERVERS,
    *OF_HYPERVISORS,
)

ALERTS: tuple[Alert, ...] = (
    Alert(
        "CsdDriveLost",
        f'{names.DEVICE_STATE.name}{{state="lost"}} == 1',
        "10s",
        "warning",
        "Drive {{ $labels.device }} is lost",
        "Drive {{ $labels.device }} of {{ $labels.instance }} has had no session with the host for 10 s of wall time; "
        "training goes on without it. csd-emu status shows whether it runs; csd-emu inject ARRAY "
        "{{ $labels.device }} revive starts it again.",
        "a drive that had a session, or should have one since training began, has none",
    ),
    Alert(
        "CsdUpdatesRefused",
        # The counter is there from its first step on, which increase() does not see.
        f"{REFUSED} > ({REFUSED_BEFORE} or 0 * {REFUSED}) {_WHILE_ANY_TRAINS}",
        "0s",
        "warning",
        "What drive {{ $labels.device }} returns is refused",
        "The host refused updates or gradients of drive {{ $labels.device }} of {{ $labels.instance }} in the last "
        f"{WINDOW}, and trains without them. The events rejected and diverging in the run's records say why; if all "
        "drives' are, the training diverges.",
        f"a drive's update or gradient was refused in the last {WINDOW}",
    ),
    Alert(
        "CsdStraggler",
        f"(increase({names.LATE_ROUNDS.name}[{WINDOW}]) > 0 or increase({names.LATE_STEPS.name}[{WINDOW}]) > 0) "
        + _WHILE_IT_IS_THERE,
        "0s",
        "warning",
        "Drive {{ $labels.device }} is late",
        'Drive {{ $labels.device }} of {{ $labels.instance }} missed about {{ $value | printf "%.0f" }} deadlines, '
        f"in device time, of rounds or steps in the last {WINDOW}, and its work was dropped. See whether other work "
        "runs in it (csd_device_slowdown_ratio), give it a smaller batch or fewer records, have a tuner do so (tuner: "
        "hypertune, in synchronous jobs), or allow more time (straggler.deadline, sync.straggler_factor).",
        f"a drive missed the deadline of a round or step in the last {WINDOW}",
    ),
    Alert(
        "CsdThroughputBelowCalibration",
        f"{OF_CALIBRATION.name} < {SLOW_RATIO} {_WHILE_IT_IS_THERE}",
        "30s",
        "warning",
        "Drive {{ $labels.device }} is slower than its calibration",
        "Drive {{ $labels.device }} of {{ $labels.instance }} trains at {{ $value | humanizePercentage }} of the "
        f"records per device second ({{{{ $labels.clock }}}}) that its calibration table says, over the last {WINDOW}. "
        "Other work runs in it, or the table is not of this model, image or drive: end that work, or measure again "
        "with csd-emu calibrate.",
        f"a drive has less than {SLOW_RATIO:.0%} of the records per device second that its calibration table says, in "
        f"the last {WINDOW}",
    ),
    Alert(
        "CsdPowerCapExceeded",
        f"{ARRAY_WATTS.name} > on ({_HOST}) group_left () {names.POWER_CAP.name} {_WHILE_ANY_TRAINS}",
        "30s",
        "warning",
        "The array draws more than its power cap",
        'The array of {{ $labels.instance }} draws {{ $value | printf "%.1f" }} W on average over device time '
        f"({{{{ $labels.clock }}}}) in the last {WINDOW}, which is more than host.power_cap (csd_power_cap_watts); "
        "figures are modelled, see docs/power.md. Train on fewer drives, or raise the cap.",
        f"the array, host included, draws more than `host.power_cap` on average over device time, in the last {WINDOW}",
    ),
    Alert(
        "CsdHostUnreachable",
        f'up{{job="{JOB}"}} == 0 and on ({_HOST}) max by ({_HOST}) (last_over_time({_TRAINING}[30m])) == 1',
        "10s",
        "critical",
        "The host {{ $labels.instance }} went away while it trained",
        "{{ $labels.instance }} has not answered for 10 s of wall time, and its drives were training when it last did. "
        "See its log; csd-emu run --resume DIRECTORY goes on from the last checkpoint.",
        "the host does not answer, and its drives were training when it last did",
    ),
    Alert(
        "CsdServerLost",
        f"{names.SERVERS.name} < {names.SERVERS_EXPECTED.name} {_WHILE_ANY_TRAINS}",
        "10s",
        "warning",
        "{{ $labels.instance }} trains with fewer servers than it began with",
        '{{ $labels.instance }} has trained together with {{ $value | printf "%.0f" }} servers, itself included, for '
        "10 s of wall time; csd_servers_expected is how many there should be. Training goes on without the others: see "
        "which of them does not answer, and its log; one that is started again joins.",
        "fewer servers train together than the run was begun with",
    ),
    Alert(
        "CsdServerUnreachable",
        f'up{{job="{JOB}", server!=""}} == 0 and on (job) {names.SERVERS_EXPECTED.name} and on (job) {_TRAINING} == 1',
        "30s",
        "warning",
        "Server {{ $labels.server }} is not seen",
        "The exporter of server {{ $labels.server }} ({{ $labels.instance }}) has not answered for 30 s of wall time, "
        "while others train together. See whether its run goes on, and whether Prometheus can reach its "
        "host.metrics_port on host.address.",
        "a server of Prometheus' list of targets does not answer while others train together",
    ),
)


def recording_yaml() -> str:
    """Return rules/recording.yml."""
    rules = [{"record": rule.name, "expr": rule.expression} for rule in RECORDED]
    return _dump("csd-emu", rules)


def alerts_yaml() -> str:
    """Return rules/alerts.yml."""
    return _dump(
        "csd-emu-alerts",
        [
            {
                "alert": alert.name,
                "expr": alert.expression,
                "for": alert.wait,
                "labels": {"severity": alert.severity},
                "annotations": {"summary": alert.summary, "description": alert.description, "runbook": alert.runbook},
            }
            for alert in ALERTS
        ],
    )


def files() -> dict[Path, str]:
    """Return what is written where."""
    return {FOLDER / "recording.yml": recording_yaml(), FOLDER / "alerts.yml": alerts_yaml()}


def _dump(group: str, rules: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO(
        "# Written by `python -m csd_lab.generate.metrics_files` from host/monitoring/metrics; change it there.\n"
    )
    text.seek(0, io.SEEK_END)
    groups = {"groups": [{"name": group, "interval": INTERVAL, "rules": list(rules)}]}
    yaml.safe_dump(groups, text, sort_keys=False, width=118, allow_unicode=True)
    return text.getvalue()
