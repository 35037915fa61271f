"""Scale beyond one machine: several servers as one, one that is lost, a thousand drives on a host, 36,000 simulated."""

from __future__ import annotations

import tempfile
from pathlib import Path

from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import report
from csd_lab.bench.scaleout import scaleout_fleet, scaleout_servers, scaleout_simulation


def run(paths: Paths, progress: Progress, seed: int) -> BenchReport:
    """Measure several servers, a fleet of stub agents, and the simulation of a thousand servers.

    Figures: `hierarchical_error`, `efficiency_3_servers` (clock ``modelled``), `server_loss_steps_lost`,
    `server_loss_seconds_to_resume` (``wall``), `fleet_1000_noop_round_seconds` (``wall``), `fleet_1000_megabytes`,
    `simulate_36000_drives_seconds` (``wall``).
    """
    progress.stage("36,000 drives simulated for 100 steps")
    simulated = scaleout_simulation.measure(seed)
    with tempfile.TemporaryDirectory(prefix="csd-") as folder:
        progress.stage("1,000 stub agents on one host process")
        fleet = scaleout_fleet.measure(_made(Path(folder) / "fleet"), seed)
        servers = scaleout_servers.measure(_made(Path(folder) / "servers"), seed, progress)
    name = "simulate_36000_drives_seconds"
    figures = servers.figures | {f"fleet_1000_{key}": value for key, value in fleet.figures.items()}
    figures[name] = simulated.pop(name)
    samples = {"servers": servers.samples, "fleet_1000": fleet.samples, "simulation": simulated}
    clocks = {"efficiency_3_servers": "modelled"}
    return report("scaleout", "wall", seed, figures, samples | {"clocks": clocks}, engine="native")


def _made(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    return folder
