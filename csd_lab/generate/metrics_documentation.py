"""Text of docs/metrics.md, from the tables of metrics and queries; `csd_lab.generate.metrics_files` writes it."""

from __future__ import annotations

from pathlib import Path

from csd_lab.generate import prometheus_rules as rules
from csd_lab.generate.promql_queries import QUERIES
from host.monitoring.metrics.metric import Metric
from host.monitoring.metrics.metric_names import METRICS, OLD_NAMES

PATH = Path(__file__).parents[2] / "docs" / "metrics.md"
_WINDOW = "5m"

_HEAD = """\
# Metrics

<!-- Written by `python -m csd_lab.generate.metrics_files` from host/monitoring/metrics; change it there. -->

While `csd-emu run` runs, the host serves Prometheus metrics of its array on `http://127.0.0.1:PORT/metrics`. The port
is `host.metrics_port` of the array file; if that is not set, it is 9464, or any free one where that is taken, and the
run prints its address. Set it
if you want to scrape:

    # array.yaml                        # prometheus.yml
    host: {metrics_port: 9464}          scrape_configs:
                                          - job_name: csd-emu
                                            scrape_interval: 5s
                                            static_configs: [{targets: ["127.0.0.1:9464"]}]

The endpoint is on `host.address`, the loopback interface unless the array file says otherwise, without TLS, and lives
as long as the run; an array that is merely `up` has none. It answers a scraper that calls it by an IP address,
`localhost` or a name in `host.names`, and no other. Rules and alerts for Prometheus are in
`images/prometheus` (below), dashboards for Grafana in `images/grafana` ([dashboards.md](dashboards.md)). The text of
1,000 drives has some 90,000 lines; the bench `scrape` ([benchmarks.md](benchmarks.md)) says how long it takes.

`csd-emu top [ARRAY]` shows the same figures of a run in progress on a terminal, as means of the last round that it saw
end; with `--once` or `--json` it looks once, and they are means since the run began. `--interval` says how often it
looks.

When its last round is over, a run waits for those who have scraped it until each has come once more, so that the final
figures are kept: at most one and a half times the interval in which the scraper came before, never more than 20 s, and
5 s for one that came only once. Nobody is waited for if nobody has scraped.

## The rule: divide by device time

Counters advance in device time, scrapes come in wall time. `rate(csd_train_samples_total[5m])` is therefore records per
*wall* second: it says how fast this machine emulates, halves when another program runs, and says nothing of a drive. To
get a figure of a drive, divide by the rate of device seconds over the same window. Which ones decides what you get:

| divide | by | to get |
|---|---|---|
| `csd_train_samples_total` | `csd_compute_seconds_total` | records per device second: how fast a drive computes; \
`records_per_device_second` of the run record |
| `csd_train_samples_total` | `csd_round_duration_seconds_sum` | records per second of the array: flash, link and \
waiting for slower drives included |
| `csd_energy_joules_total` | `csd_device_seconds_total` | watts: energy is drawn all the time, waiting included |
| `csd_energy_joules_total` | `csd_train_samples_total` | joules per record; no clock is in it |

`csd_device_seconds_total` is elapsed device time: the composed length of all rounds for which the record charges energy
to a drive (or the host), or in which it was left idle. It is the same for all of them, unless one was missing.

Use `sum by (device)` on both sides: it drops `clock`, `phase`, `component`, `instance` and `job`, so that both have the
same labels. Do not divide across clocks. Take a window of several rounds, or the rate is of none or one: counters move
when a round is over (those of steps with every step), by what the records of the run directory say of it.

`increase()` and `rate()` extrapolate to the edges of their window. In a quotient this cancels; alone it does not: read
joules from the counter itself, not from `increase()`.

## Queries

| question | query |
|---|---|
"""

_MIDDLE = """\

The bench `metrics` ([benchmarks.md](benchmarks.md)) asks a real Prometheus some of these while the machine is kept
busy, and holds the answers against the run record.

## Metrics

`clock` says what seconds are: `counted` (virtual machines), `modelled` (from a calibration table) or `wall`; see
[fidelity.md](fidelity.md). Elapsed time, energy and power carry the clock of the array, in which several are joined by
`+`. `device` is a drive, or `host` for energy, power and elapsed time, and for all that it does where it trains too.
There are no `_created` series. A metric for which there are no data is not exported: memory is missing with agents that
do not report it, the boot duration on an array that was up before the run.

Counters are there when training begins. Those of a new run begin at 0, those of a resumed run where its checkpoint was;
only errors and rejoins begin at 0 again. A run that was killed does the rounds behind its checkpoint once more, so that
a counter can be lower after the resume than before it. Prometheus takes that for a reset to 0, and `rate()` and
`increase()` add the whole counter again: take a window that begins after the resume.

| metric | type | labels | meaning |
|---|---|---|---|
"""

_TAIL = """\

* Energy is modelled from the drive's profile, of which some values are assumed ([power.md](power.md)): `source` is
  `model`. `component` is `idle`, `cpu`, `dram`, `flash` or `link`, of the host also `chassis`.
* `direction` is `to_device` or `from_device`; `phase` is `forward`, `backward`, `update` or, but not in steps,
  `encode`; `kind` of errors is `lost`, `failed` or `refused`; `op` is `read`.
* Of a drive that missed a round's deadline the work was thrown away: its bytes, energy, and flash and link seconds
  until the deadline count, but not its records, steps and compute seconds.
* Counters with `band` in their name say between what the counter beside them may lie ([bands.md](bands.md)): `end` is
  `low` or `high`. Divide both ends by the same counter, or by the same end of another one. They are there as long as
  the bands of all rounds so far are known; on the clock `wall` there are none.
* A step's seconds are known as a mean per federated round and phase, so the sum and count of
  `csd_train_step_duration_seconds` are exact, its buckets are those of the means. Of synchronous rounds each step's
  compute is known: a phase is taken to have the same share of every step that it has of the round.
* Metrics of steps, retunes, slowdowns and disturbances are those of synchronous runs (`mode` is `sync`). They move
  with every step, all others when a round is over; gauges are of the last step. Where the host trains too it is the
  device `host` in all of them, and its counters are there from its first step on.
* `csd_possible_records_per_second` knows compute alone, for the tables have neither flash nor link: hold it against
  `csd_global_batch_size` over the slowest device's seconds, or see the report of the run, which does.
* Metrics of several servers (`csd_servers`, `csd_allreduce_...`, `csd_server_...`, `csd_rendezvous_total`) are there
  only where several train together, but for `csd_server_info`. Their counters move when a round is over, for
  they are held against its seconds; `csd_rendezvous_total` and `csd_servers` move with every step.
* States: `defined` until the run starts the drives, `booting` until the drive's hello, `ready`, `training` from the
  first round on (`ready` again while a round leaves it idle), `lost` when its session has ended.

## Old names

A metric that was renamed is exported under its old name too, for one release
([compatibility.md](compatibility.md)).

| old name | name |
|---|---|
%(old)s

## Drives that are gone

A drive that has no session at the end of two rounds in a row, the one in which it was lost and the next, is gone: its
series vanish. What remains, for alerts, is `csd_device_up` 0 and `csd_device_state` `lost` with the counts of its
errors and rejoins; and energy, power and elapsed time for as long as the records charge energy to it: a drive that does
not answer still draws power. When it rejoins, its series are back and its counters go on where they were. Sum rates, as
in `sum(rate(x[5m]))`, never the other way round, and a drive that vanishes does no harm.

## One target, not one per drive

Prometheus scrapes the host, and nothing else. A drive has no port that anyone could dial, only a session that it has
dialled itself (a real one sits behind a tunnel through NVMe), and no clock of its own that would mean anything: device
seconds are composed on the host, for all drives at once, when a round is over. So the host knows everything there is to
know, and a scrape of it is one moment of the whole array: counters of different drives never are of different rounds.
What targets would give is there all the same. A drive that comes appears with its first session, without any
configuration; one that goes vanishes, and Prometheus marks its series as stale with the next scrape, so that no query
returns their last value for another five minutes; `csd_device_up` is what `up` would be. A test kills and revives a
drive beside a real Prometheus and sees both.

## Several servers, one Prometheus

When several servers train together, each has its own host with its own exporter, and one Prometheus scrapes them all.
Give it a list of them (`file_sd_configs`), which it reads again whenever it changes; `images/prometheus/prometheus.yml`
looks for `targets/*.json` beside it:

    [{"targets": ["10.0.0.1:9464"], "labels": {"server": "rack-1"}},
     {"targets": ["10.0.0.2:9464"], "labels": {"server": "rack-2"}}]

`csd-emu store SERVERS.YAML --targets FILE` keeps such a file as servers come; one of which nothing was
heard for ten minutes is no longer in it. Each host's `host.address`
must be one that Prometheus reaches, and the endpoint has no TLS: let it listen on a network of your own only.

`server` is a target label: Prometheus puts it on every series of that host, `up` included. The exporter does not put it
there itself, for [Prometheus' guide for exporters](https://prometheus.io/docs/instrumenting/writing_exporters/#target-labels-not-static-scraped-labels)
says not to: a label that all series of a target share is for whoever runs Prometheus to give, it makes every line
longer, and one that target and exporter both give is renamed `exported_server` (or, with `honor_labels`, an exporter
can overwrite `job` and `instance`). What is known of a thing, and is no part of its identity, goes into a series of its
own with the value 1, to be joined when it is asked for:

* `csd_server_info{server}` says which server a host is: the name that the run gave it, that of its array if there is
  only one. Rules take it from there (`* on (job, instance) group_left (server) csd_server_info`), so that they name
  servers even if the list of targets does not. If it does, the list is right: the join takes the target's label, and
  the exporter's own is `exported_server`.
* `csd_device_info{device, hypervisor}` says which hypervisor runs a drive, by name; it is empty, in Prometheus
  the same as missing, if none does. A drive that moves to another hypervisor stays the same drive.

Drives of two servers may have the same name: group by `instance` (or `server`) too. All other series are as they are
for one server: `csd_round_duration_seconds` is the time of the server's array, and has in it what it waited for others
and what adding up the gradients took, so that per-server figures divide by it as they do for one. Figures of all
servers are sums of theirs: `sum(server:csd_train_samples_per_round_duration_seconds:ratio_rate%(window)s)` are the
records per second of all, for steps that are taken together take all of them equally long.

## Recording rules

`images/prometheus/rules/recording.yml` records the queries above, with the labels `job` and `instance` of the scraped
host and the `clock` of the seconds that are divided by. Their names are `level:metric:operations`, as is Prometheus'
practice: the level is what labels they have besides, `array` for none, `server` for the name that `csd_server_info`
gives it, `hypervisor` for one that `csd_device_info` names; `ratio_rate%(window)s` is the rate of one
counter over that of another in the last %(window)s.

| rule | meaning |
|---|---|
%(recorded)s

The window is of wall time, and must be longer than any round takes: counters move when a round is over. With
%(window)s there are no gaps while rounds take less than that. A rule has no value, rather than 0 or NaN, if nothing has
moved in its window, and none at once when its drive is gone or its host has ended, though the window still holds their
past. If your rounds take longer, set `WINDOW` in `csd_lab/generate/prometheus_rules.py` and run `python -m
csd_lab.generate.metrics_files`.

## Alerts

`images/prometheus/rules/alerts.yml`; `promtool test rules tests/prometheus/alerts.test.yml` tests them. The stack has
no Alertmanager: see Prometheus' page `/alerts`, the dashboards, or the series `ALERTS`. What to do when one fires:
[alerts.md](alerts.md).

| alert | severity | fires when | for |
|---|---|---|---|
%(alerts)s

Why they do not fire falsely, nor flap:

* **When training ends** a run's last scrape shows no drive in the state `training` any more: the run waits for that
  scrape (above). Alerts that look back over a window ask whether the array trains now, so that what is still in the
  window no longer counts. That a host does not answer is an alert only if its drives were training when it last did: a
  run that has ended may go. One that was interrupted (Ctrl-C, SIGTERM) in a round has not ended; the alert fires, for
  30 minutes at most.
* **Between rounds**, however long they take up to %(window)s, rules keep their value and the drives' state stays
  `training`.
* **Drives that are not chosen for a round** are `ready`, so alerts ask whether the array trains, not the drive.
* **A drive that dials again within 10 s** was never lost, and one failed scrape is no host that went away.
* **Lateness** stays for %(window)s after the last missed deadline, so that a drive that is late in every other round
  is one alert.
* **Throughput** is compared with the mean of what the table said over the same window, so that a retune to other batch
  sizes is no loss of throughput.

* **Servers of a list** that do not train together with others may go as they like: `CsdServerUnreachable` asks whether
  any of the same job trains together. A server that went away while it trained is `CsdHostUnreachable`, at once.

`CsdPowerCapExceeded` needs `host.power_cap` ([configuration.md](configuration.md)), `CsdThroughputBelowCalibration` a
calibration table that covers the job's batch sizes, `CsdStraggler` a deadline (`straggler.deadline`,
`sync.straggler_factor`).

## Not exported

The plan of csd-emu names more metrics than there are. These are missing on purpose, or for now:

| metric | why, and what there is instead |
|---|---|
| `csd_cpu_seconds_total`, `csd_cpu_throttled_seconds_total`, `csd_emulation_cpu_fraction` | drives are not slowed by \
a quota of processor time; `csd_compute_seconds_total` has the seconds per phase |
| `csd_nvme_written_bytes_total` | what a drive writes of its own \
is part of `csd_write_amplification`; its host's writes are in `csd_host_bytes_total` |
| `csd_emulation_calibration_ratio` | `csd_emulation_scale_ratio`: what a profile makes of the \
reference core's seconds |
| `csd_train_step_duration_seconds` with `phase` `load` or `exchange` | reading and link are composed per round: \
`csd_nvme_io_seconds_total`, `csd_link_seconds_total` |
| `csd_comm_queue_bytes`, `csd_comm_predicted_speedup_ratio` | what waits is in the run's slices, what a change \
promises in its events |
| estimates of the planner | what they would measure does not exist yet |
"""


def render() -> str:
    """Return the page."""
    queries = [f"| {query.question} | `{query.over(_WINDOW)}` |" for query in QUERIES]
    old = (f"| `{old.name}` | `{metric.name}` |" for metric, old in OLD_NAMES.items())
    tail = _TAIL % {
        "old": "\n".join(old),
        "window": rules.WINDOW,
        "recorded": "\n".join(f"| `{rule.name}` | {rule.meaning} |" for rule in rules.RECORDED),
        "alerts": "\n".join(map(_alert, rules.ALERTS)),
    }
    return _HEAD + "\n".join(queries) + "\n" + _MIDDLE + "\n".join(map(_row, METRICS)) + "\n" + tail


def _alert(alert: rules.Alert) -> str:
    return f"| `{alert.name}` | {alert.severity} | {alert.meaning} | {alert.wait} |"


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"
