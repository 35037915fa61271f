"""Dashboards of parts: one drive, and servers with the hypervisors that their drives run on."""

from __future__ import annotations

from csd_lab.generate import prometheus_rules as rules
from csd_lab.generate.dashboards.panels import (
    COST,
    DRIVE,
    Clock,
    Dashboard,
    PanelExpression,
    PanelNeeds,
    Unit,
    lines,
    of,
    stat,
)
from csd_lab.generate.dashboards.service_panels import HOST_IO_OF_DRIVE
from csd_lab.generate.prometheus_rules import WINDOW

DRIVE_DASHBOARD = Dashboard(
    "drive",
    "csd-emu: drive",
    "One drive; choose it above.",
    [
        COST,
        (
            "Drive $device",
            [
                stat("Session", f"csd_device_up{DRIVE}", Unit.NUMBER, Clock.NONE, "1 while the drive has a session."),
                stat("Batch size", f"csd_batch_size{DRIVE}", Unit.RECORDS, Clock.NONE, "Records per step."),
                stat(
                    "Memory",
                    f"csd_memory_used_bytes{DRIVE}",
                    Unit.BYTES,
                    Clock.NONE,
                    "Most that the agent has held.",
                    needs=PanelNeeds.MEMORY,
                ),
                stat(
                    "Compute time",
                    f"sum by (clock) (csd_compute_seconds_total{DRIVE})",
                    Unit.SECONDS,
                    Clock.DEVICE,
                    "In which the drive has computed, since the run began.",
                ),
                stat(
                    "Records",
                    f"csd_train_samples_total{DRIVE}",
                    Unit.RECORDS,
                    Clock.NONE,
                    "Trained on, repeats counted.",
                ),
                stat(
                    "Errors",
                    f"sum(csd_errors_total{DRIVE})",
                    Unit.NUMBER,
                    Clock.NONE,
                    "Times lost, failed or refused.",
                ),
                lines(
                    "Throughput",
                    [
                        PanelExpression(of(rules.DEVICE_RECORDS, DRIVE), "measured ({{clock}})"),
                        PanelExpression(
                            f"csd_calibrated_records_per_second{DRIVE}",
                            "calibration table ({{clock}})",
                            PanelNeeds.TABLE,
                        ),
                    ],
                    Unit.RECORDS_PER_SECOND,
                    Clock.DEVICE,
                    f"Records per second of compute over the last {WINDOW}, and what the calibration table says of the "
                    "last round's batches.",
                ),
                lines(
                    "Against its calibration",
                    [
                        PanelExpression(of(rules.OF_CALIBRATION, DRIVE), "throughput / table", PanelNeeds.TABLE),
                        PanelExpression(f"csd_device_slowdown_ratio{DRIVE}", "step seconds / table", PanelNeeds.SYNC),
                    ],
                    Unit.SHARE,
                    Clock.DEVICE,
                    f"Throughput over the last {WINDOW}, and the seconds of the last synchronous step, as shares of "
                    "the table's.",
                ),
                lines(
                    "Step by phase",
                    of(rules.STEP_SECONDS, DRIVE),
                    Unit.SECONDS,
                    Clock.DEVICE,
                    f"Mean seconds of a step's phases over the last {WINDOW}.",
                    "{{phase}}",
                    stacked=True,
                ),
                lines(
                    "Slow steps",
                    "histogram_quantile(0.95, sum by (le, phase) "
                    f"(rate(csd_train_step_duration_seconds_bucket{DRIVE}[{WINDOW}])))",
                    Unit.SECONDS,
                    Clock.DEVICE,
                    f"What 95 % of steps in the last {WINDOW} stayed below, by phase, as precise as the buckets. Of "
                    "a federated round only the mean is known.",
                    "{{phase}}",
                ),
                lines(
                    "Share of its time",
                    [
                        PanelExpression(of(rules.BUSY, DRIVE), "computes"),
                        PanelExpression(of(rules.LINK_RATIO, DRIVE), "moves weights or gradients"),
                    ],
                    Unit.SHARE,
                    Clock.DEVICE,
                    f"Of the array's time over the last {WINDOW}; the rest is flash and waiting.",
                ),
                lines(
                    "Power by component",
                    f"sum by (component) (csd_power_watts{DRIVE})",
                    Unit.WATTS,
                    Clock.DEVICE,
                    "Mean of the last round, modelled from the drive's profile.",
                    "{{component}}",
                    stacked=True,
                ),
                lines(
                    "Energy per record",
                    of(rules.DEVICE_JOULES_PER_RECORD, DRIVE),
                    Unit.JOULES_PER_RECORD,
                    Clock.NONE,
                    f"Of this drive alone, over the last {WINDOW}.",
                    "{{device}}",
                ),
                lines(
                    "Link",
                    of(rules.LINK_BYTES_PER_SECOND, DRIVE),
                    Unit.BYTES_PER_SECOND,
                    Clock.DEVICE,
                    f"Bytes per second of the array's time over the drive's link, both ways, over the last {WINDOW}.",
                    "{{device}}",
                ),
                lines(
                    "Retunes and late work",
                    [
                        PanelExpression(f"csd_retunes_total{DRIVE}", "retunes", PanelNeeds.SYNC),
                        PanelExpression(f"csd_late_steps_total{DRIVE}", "late steps", PanelNeeds.SYNC),
                        PanelExpression(f"csd_late_rounds_total{DRIVE}", "late rounds"),
                    ],
                    Unit.NUMBER,
                    Clock.NONE,
                    "Changes of its batch size, and steps and rounds that did not wait for it, since the run began.",
                ),
                lines(
                    "Competing work",
                    f"csd_disturbance_weight{DRIVE}",
                    Unit.NUMBER,
                    Clock.NONE,
                    "Cgroup weight of the work that the job has compete with the trainer, which has 100.",
                    "weight",
                    needs=PanelNeeds.SYNC,
                ),
            ],
        ),
        HOST_IO_OF_DRIVE,
    ],
    by_drive=True,
)


_EACH = "{{server}} ({{clock}})"
_HYPERVISOR = "{{hypervisor}} ({{clock}})"
_BY_HYPERVISOR = 'on (job, instance, device) group_left (hypervisor) csd_device_info{hypervisor!=""}'

SERVERS = Dashboard(
    "servers",
    "csd-emu: servers",
    "Several servers, each with its drives; one alone has the name of its array. Below, by hypervisor.",
    [
        COST,
        (
            "Servers",
            [
                stat(
                    "Servers seen",
                    "count(csd_server_info)",
                    Unit.NUMBER,
                    Clock.NONE,
                    "Servers whose host answers Prometheus.",
                ),
                stat(
                    "Training together",
                    "min(csd_servers)",
                    Unit.NUMBER,
                    Clock.NONE,
                    "Servers that take steps together, as the one says that knows of fewest.",
                    needs=PanelNeeds.SERVERS,
                ),
                stat(
                    "Begun with",
                    "max(csd_servers_expected)",
                    Unit.NUMBER,
                    Clock.NONE,
                    "Servers that the run was begun with.",
                    needs=PanelNeeds.SERVERS,
                ),
                stat(
                    "Meetings anew",
                    "max(csd_rendezvous_total)",
                    Unit.NUMBER,
                    Clock.NONE,
                    "How often the servers have met anew, after one was lost or came back.",
                    needs=PanelNeeds.SERVERS,
                ),
                stat(
                    "Throughput of all",
                    f"sum({rules.SERVER_RECORDS.name})",
                    Unit.RECORDS_PER_SECOND,
                    Clock.DEVICE,
                    f"Records per second of the arrays of all servers, added up, over the last {WINDOW}.",
                ),
                stat(
                    "Power of all",
                    f"sum({rules.SERVER_WATTS.name})",
                    Unit.WATTS,
                    Clock.DEVICE,
                    f"Of all servers and drives, mean of the last {WINDOW}.",
                ),
                lines(
                    "Throughput of each server",
                    of(rules.SERVER_RECORDS),
                    Unit.RECORDS_PER_SECOND,
                    Clock.DEVICE,
                    f"Records per second of its array, flash, link and waiting included, over the last {WINDOW}.",
                    _EACH,
                    stacked=True,
                ),
                lines(
                    "Power of each server",
                    of(rules.SERVER_WATTS),
                    Unit.WATTS,
                    Clock.DEVICE,
                    f"Its drives included, mean of the last {WINDOW}.",
                    _EACH,
                    stacked=True,
                ),
                lines(
                    "Waiting for other servers",
                    of(rules.SERVER_WAIT_SHARE),
                    Unit.SHARE,
                    Clock.DEVICE,
                    "Share of the array's time in which the server had done its part of a step and another had not, "
                    f"over the last {WINDOW}. The server that never waits is the one that all others wait for.",
                    _EACH,
                    needs=PanelNeeds.SERVERS,
                ),
                lines(
                    "Adding up gradients",
                    of(rules.SERVER_ALLREDUCE),
                    Unit.SHARE,
                    Clock.DEVICE,
                    f"Share of the array's time that the all-reduce between servers takes, over the last {WINDOW}.",
                    _EACH,
                    needs=PanelNeeds.SERVERS,
                ),
                lines(
                    "Between servers",
                    of(rules.SERVER_ALLREDUCE_BYTES),
                    Unit.BYTES_PER_SECOND,
                    Clock.DEVICE,
                    f"Bytes per second of the array's time that each server sends to others, over the last {WINDOW}.",
                    _EACH,
                    needs=PanelNeeds.SERVERS,
                ),
                lines(
                    "Energy of each server",
                    of(rules.SERVER_JOULES),
                    Unit.JOULES,
                    Clock.DEVICE,
                    "Its drives included, since its run began.",
                    _EACH,
                    stacked=True,
                ),
                lines(
                    "Energy per record of each server",
                    of(rules.SERVER_JOULES_PER_RECORD),
                    Unit.JOULES_PER_RECORD,
                    Clock.NONE,
                    f"Its drives included, over the last {WINDOW}.",
                    "{{server}}",
                ),
                lines(
                    "Steps together",
                    [
                        PanelExpression(
                            "csd_server_steps_total * on (job, instance) group_left (server) csd_server_info",
                            "{{server}}",
                            PanelNeeds.SERVERS,
                        )
                    ],
                    Unit.NUMBER,
                    Clock.NONE,
                    "That each server has taken with others since its run began.",
                ),
            ],
        ),
        (
            "Hypervisors",
            [
                lines(
                    "Drives up",
                    f"sum by (hypervisor) (csd_device_up * {_BY_HYPERVISOR})",
                    Unit.NUMBER,
                    Clock.NONE,
                    "Drives with a session, by the hypervisor that runs them.",
                    "{{hypervisor}}",
                    needs=PanelNeeds.HYPERVISOR,
                    stacked=True,
                ),
                lines(
                    "Throughput of the drives",
                    of(rules.HYPERVISOR_RECORDS),
                    Unit.RECORDS_PER_SECOND,
                    Clock.DEVICE,
                    f"Records per second of compute of a hypervisor's drives, added up, over the last {WINDOW}.",
                    _HYPERVISOR,
                    needs=PanelNeeds.HYPERVISOR,
                ),
                lines(
                    "Power of the drives",
                    of(rules.HYPERVISOR_WATTS),
                    Unit.WATTS,
                    Clock.DEVICE,
                    f"Of a hypervisor's drives, added up, mean of the last {WINDOW}.",
                    _HYPERVISOR,
                    needs=PanelNeeds.HYPERVISOR,
                ),
            ],
        ),
    ],
)
