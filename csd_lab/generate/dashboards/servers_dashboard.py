"""Servers that one Prometheus scrapes, and the hypervisors that their drives run on."""

from __future__ import annotations

from csd_lab.generate import prometheus_rules as rules
from csd_lab.generate.dashboards.common import COST, lines, of, stat
from csd_lab.generate.dashboards.panels import Clock, Dashboard, PanelExpression, PanelNeeds, Unit
from csd_lab.generate.prometheus_rules import WINDOW

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
