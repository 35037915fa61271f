"""The tables of docs/capacity.md: what 10, 100 and 1,000 servers would do, and what would stop them next.

``python -m csd_lab.simulate.capacity`` writes them into the page. A test holds the page against this module.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from csd_emu.config.array_file import ArrayConfig
from csd_emu.config.servers_file import ServersConfig
from csd_emu.perfmodel.host_node import MEMORY_BYTES_PER_SECOND
from csd_emu.profiles import get_profile
from csd_emu.profiles.calibration.table_store import SHIPPED, CalibrationStore
from csd_lab.simulate.rack_allreduce import ALGORITHMS
from csd_lab.simulate.simulated_run import PARTS
from csd_lab.simulate.simulation_figures import SimulatedTree
from csd_lab.simulate.simulation_report import describe_tree, run_request
from csd_lab.simulate.simulation_request import SimulationRequest
from csd_lab.testkit.random_rounds import list_rounds
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.models import ZOO
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.units import format_bytes
from host.cli.schemas import check_clone
from host.config.job_file import JobConfig
from host.core.datasets import synthetic_source
from host.core.device_time import COUNTED
from host.core.model_facts import Load, inspect_load
from host.core.records import EventKind, EventRecord
from host.core.summary import SYNC
from host.monitoring.metrics.exposition import Exposition
from host.monitoring.metrics.metrics_state import MetricsState
from host.monitoring.run_facts import DeviceFacts, RunFacts
from host.monitoring.run_listener import RunStart, show_round
from host.training.optimiser_bytes import load_between

PAGE = Path(__file__).parents[2] / "docs" / "capacity.md"
MODELS = ("digits_cnn", "mobilenet_v2", "resnet50", "vgg16")
SERVERS, DRIVES, RACK = (10, 100, 1000), 36, 40
ARRAY = {"name": "server", "engine": "native", "devices": [{"profile": "newport", "count": DRIVES}]}
# Llama 3 405B: 419 unexpected interruptions in 54 days on 16,384 GPUs, eight a server.
SERVER_MTBF_HOURS = 54 * 24 * (16_384 / 8) / 419
# One drive in a hundred fails in a year of 8,766 hours.
DRIVE_MTBF_HOURS = 8_766 / 0.01
SCRAPE_SECONDS = 5
STEPS = 10
_SHORT = {
    "compute": "compute",
    "drive_link": "drives' links",
    "host": "hosts' sums",
    "server_link": "servers' links",
    "rack_uplink": "uplinks",
    "hops": "latencies",
    "failures": "failures",
    "retunes": "retunes",
}
_PLAIN = "text/plain;version=0.0.4"
_BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def job_of(model: str) -> dict[str, Any]:
    """Return the job file of the page."""
    entry = ZOO[model]
    source = "digits" if model == "digits_cnn" else synthetic_source(entry.input_shape, entry.classes)
    return {"model": model, "data": {"source": source}, "mode": "sync", "tuner": "stannis", "sync": {"micro_batch": 4}}


def servers_of(count: int, **changes: Any) -> dict[str, Any]:
    """Return the servers file of the page; a change of None takes a key out."""
    file = {
        "name": "hall",
        "servers": [{"name": "srv", "array": "array.yaml", "count": count}],
        "link": {"bandwidth": "1.25 GB/s", "latency": "50 us"},
        "racks": {"servers": RACK, "oversubscription": 4},
    }
    return file | changes


@functools.cache
def load_of(model: str) -> Load:
    """Return the bytes of a model."""
    return inspect_load(ShippedCode(model), ZOO[model].input_shape)


def simulate_servers(model: str, count: int, **changes: Any) -> SimulatedTree:
    """Return what ``csd-emu simulate job.yaml --servers servers.yaml --steps 10`` says of the page's files."""
    config, array = ServersConfig.model_validate(servers_of(count, **changes)), ArrayConfig.model_validate(ARRAY)
    job, arrays = JobConfig.model_validate(job_of(model)), {"array.yaml": array}
    load = load_between(load_of(model), job, config)
    request = SimulationRequest(config, arrays, job, load, STEPS)
    tree = request.tree(CalibrationStore(SHIPPED), "middle")
    return describe_tree(tree, run_request(request, tree))


_simulated = functools.cache(simulate_servers)


@functools.cache
def tables() -> Mapping[str, str]:
    """Return name -> Markdown of every table of the page."""
    return {
        "steps": _steps(),
        "arithmetic": _arithmetic(),
        "allreduce": _allreduce(),
        "helps": _helps(),
        "control": _control(),
        "checkpoints": _checkpoints(),
        "next": _next(),
    }


def filled(page: str) -> str:
    """Return the page with its tables as they are now.

    Raises:
        KeyError: it asks for a table that there is not.
    """
    made = tables()
    return _BLOCK.sub(lambda match: f"{match[1]}\n{made[match[2]]}\n\n{match[3]}", page)


def _steps() -> str:
    rows = []
    for model in MODELS:
        for count in SERVERS:
            run = _simulated(model, count)
            step, (batch, _) = run.step_seconds[1], run.classes[0].first_batches
            shares = [_percent(getattr(run.seconds, part) / run.array_seconds) for part in PARTS[:6]]
            rate, ideal = f"{run.records_per_second:,.0f}", _percent(run.efficiency)
            rows.append(
                [model, f"{count:,}", batch, f"{step:.4g}", rate, ideal, *shares, f"{run.joules_per_record:.3g}"]
            )
    head = ["model", "servers", "batch", "step s", "records/s", "of ideal", *(_SHORT[part] for part in PARTS[:6])]
    return _table([*head, "J/record"], rows)


def _arithmetic() -> str:
    """Return what one step at 1,000 servers takes beside computing, worked out."""
    host, memory, n, r = get_profile("xeon-4108"), MEMORY_BYTES_PER_SECOND.value, SERVERS[-1], SERVERS[-1] // RACK
    tunnel, link, latency = host.link_bytes_per_second.value, 1.25e9, 50e-6
    lines = []
    for model in MODELS:
        load, parts = load_of(model), _simulated(model, n).seconds
        size, gradients = load.state_bytes, load.gradient_bytes
        state, own = format_bytes(size), format_bytes(gradients)
        inside, between = 2 * (RACK - 1) / RACK * size / link, 2 * (r - 1) / r * size / (RACK * link / 4)
        hops = 2 * (RACK - 1) + 2 * (r - 1)
        said = ", ".join(
            f"{each / STEPS:.4g}" for each in (parts.drive_link, parts.host, parts.server_link, parts.hops)
        )
        lines += [
            f"* **{model}**: {state} of state, of them {own} of gradients.",
            f"    * drives' links: 2 x {DRIVES} x {state} / 2 GB/s = {2 * DRIVES * size / tunnel:.4g} s",
            f"    * host: (3 x {DRIVES} + 5) x {own} / 19.2 GB/s = {(3 * DRIVES + 5) * gradients / memory:.4g} s",
            f"    * ring: 2 x {n - 1}/{n} x {state} / 1.25 GB/s = {2 * (n - 1) / n * size / link:.4g} s, and "
            f"2 x {n - 1} x 50 us = {2 * (n - 1) * latency:.4g} s",
            f"    * hierarchical instead: 2 x 39/40 x {state} / 1.25 GB/s = {inside:.4g} s in racks, 2 x {r - 1}/{r} x "
            f"{state} / 12.5 GB/s = {between:.4g} s between them, and {hops} x 50 us = {hops * latency:.4g} s",
            f"    * the simulated step says {said} s for the first three lines",
        ]
    return "\n".join(lines)


def _allreduce() -> str:
    rows = []
    for model in MODELS:
        for count in SERVERS:
            seconds = _simulated(model, count).allreduce_seconds
            rows.append([model, f"{count:,}", *(f"{seconds[name]:.4g}" for name in ALGORITHMS)])
    return _table(["model", "servers", *(f"{name} s" for name in ALGORITHMS)], rows)


def _helps() -> str:
    """Return what changes make of 1,000 servers, each by itself."""
    hierarchical = {"servers": RACK, "oversubscription": 4, "allreduce": "hierarchical"}
    cases: dict[str, dict[str, Any]] = {
        "as above": {},
        "`racks.allreduce: scattered`": {"racks": hierarchical | {"allreduce": "scattered"}},
        "`racks.allreduce: hierarchical`": {"racks": hierarchical},
        "`reduce_every: 10`": {"reduce_every": 10},
        "`link.bandwidth: 3.125 GB/s`": {"link": {"bandwidth": "3.125 GB/s", "latency": "50 us"}},
        "`link.bandwidth: 125 MB/s`": {"link": {"bandwidth": "125 MB/s", "latency": "50 us"}},
    }
    rows = []
    for name, changes in cases.items():
        runs = [(simulate_servers if changes else _simulated)(model, SERVERS[-1], **changes) for model in MODELS]
        rows.append([name, *(f"{run.records_per_second:,.0f} ({_percent(run.efficiency)})" for run in runs)])
    return _table(["1,000 servers", *(f"{model}, records/s (of ideal)" for model in MODELS)], rows)


def _control() -> str:
    """Return what grows beside the step."""
    per_drive, per_server = series_per_drive()
    figures: dict[str, list[str]] = {
        "drives": [f"{DRIVES * n:,}" for n in SERVERS],
        f"series, {per_drive} per drive and {per_server} per server": [],
        f"samples/s, one scrape in {SCRAPE_SECONDS} s": [],
        "store: n (n - 1) reads per rendezvous": [f"{n * (n - 1):,}" for n in SERVERS],
        "connections of a worker: n - 1, of 1,024 descriptors": [f"{n - 1:,}" for n in SERVERS],
        "two turns' all-gathers, s per step: 4 (n - 1) x 50 us": [f"{4 * (n - 1) * 50e-6:.3g}" for n in SERVERS],
        f"servers lost per day: 24 n / {SERVER_MTBF_HOURS:,.0f} h": [
            f"{24 * n / SERVER_MTBF_HOURS:.2g}" for n in SERVERS
        ],
        f"drives lost per day: 24 x {DRIVES} n / {DRIVE_MTBF_HOURS:,.0f} h": [
            f"{24 * DRIVES * n / DRIVE_MTBF_HOURS:.2g}" for n in SERVERS
        ],
    }
    for seconds in (20, 90):
        name = f"share of time lost to rendezvous of {seconds} s"
        figures[name] = [f"{n * seconds / (SERVER_MTBF_HOURS * 3600):.2%}" for n in SERVERS]
    series = [n * (DRIVES * per_drive + per_server) for n in SERVERS]
    for name in figures:
        if name.startswith("series"):
            figures[name] = [f"{each:,}" for each in series]
        elif name.startswith("samples"):
            figures[name] = [f"{each / SCRAPE_SECONDS:,.0f}" for each in series]
    return _table(["", *(f"{n:,} servers" for n in SERVERS)], [[name, *cells] for name, cells in figures.items()])


@functools.cache
def series_per_drive() -> tuple[int, int]:
    """Return how many Prometheus series each drive adds, and how many there are beside: of the run and of its host."""
    few, more = _count_series(2), _count_series(12)
    per_drive = (more - few) // 10
    return per_drive, few - 2 * per_drive


def _count_series(drives: int) -> int:
    """Return how many series the exporter's text has of a synthetic run."""
    names = [f"csd-{number:02d}" for number in range(drives)]
    state = MetricsState(RunFacts("series", "qemu", "digits_cnn", SYNC, tuple(names)))
    for name in names:
        state.add_event(EventRecord(name, EventKind.JOINED))
    hello = {"machine": "aarch64", "agent": "0.1.0", "torch": "2.9.1"}
    scales = dict.fromkeys(PhaseSeconds.__struct_fields__, 0.25)
    facts = [DeviceFacts(name, "emulated", "newport", 4, COUNTED, scales, hello) for name in names]
    state.begin(RunStart(COUNTED, list_devices=lambda: facts))
    show_round([state], next(list_rounds(SYNC, names, 1, 0)))
    _, text = Exposition(state).render(_PLAIN, None)
    return sum(bool(line) and not line.startswith(b"#") for line in text.splitlines())


def _checkpoints() -> str:
    rows = []
    for model in MODELS:
        load = load_of(model)
        size = load.state_bytes + load.gradient_bytes
        rows.append([model, format_bytes(size), *(format_bytes(n * size) for n in SERVERS)])
    return _table(["model", "one checkpoint", *(f"of each of {n:,} servers" for n in SERVERS)], rows)


def _next() -> str:
    """Return what takes most of a step beside computing, and how much of it."""
    rows = []
    for count in SERVERS:
        cells = []
        for model in MODELS:
            run = _simulated(model, count)
            part = run.next_bottleneck
            share = getattr(run.seconds, part) / run.array_seconds
            first = "" if run.bottleneck == "compute" else "more than compute: "
            cells.append(f"{first}{_SHORT[part]}, {_percent(share)}")
        rows.append([f"{count:,}", *cells])
    return _table(["servers", *MODELS], rows)


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def main() -> None:
    """Write the tables into the page."""
    check_clone(PAGE.parent / "page")
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
