"""Scale beyond one machine: several servers as one, one that is lost, a thousand drives on a host, 36,000 simulated."""

from __future__ import annotations

from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, temporary_folder
from csd_lab.bench.scaleout import scaleout_fleet, scaleout_servers, scaleout_simulation


def run(bench: Bench) -> BenchReport:
    """Measure several servers, a fleet of stub agents, and the simulation of a thousand servers.

    Figures: `hierarchical_error`, `efficiency_3_servers` (clock ``modelled``), `server_loss_steps_lost`,
    `server_loss_seconds_to_resume` (``wall``), `fleet_1000_noop_round_seconds` (``wall``), `fleet_1000_megabytes`,
    `simulate_36000_drives_seconds` (``wall``).
    """
    bench.progress.stage("36,000 drives simulated for 100 steps")
    simulated = scaleout_simulation.measure(bench.seed)
    with temporary_folder() as folder:
        bench.progress.stage("1,000 stub agents on one host process")
        fleet, fleet_samples = scaleout_fleet.measure(folder, bench.seed)
    with temporary_folder() as folder:
        figures, servers_samples = scaleout_servers.measure(folder, bench.seed, bench.progress)
    name = "simulate_36000_drives_seconds"
    figures |= {f"fleet_1000_{key}": value for key, value in fleet.items()} | {name: simulated.pop(name)}
    samples = {"servers": servers_samples, "fleet_1000": fleet_samples, "simulation": simulated}
    clocks = {"efficiency_3_servers": "modelled"}
    return bench.report("wall", figures, samples | {"clocks": clocks}, engine="native")
