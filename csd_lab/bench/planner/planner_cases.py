"""The cases of `bench planner`: clusters as a planner knows them, what is preferred, and what is truly best. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np

from csd_emu.perfmodel.timeline import Link
from csd_emu.profiles import HostRatio, Power, Profile, Sourced, get_profile
from csd_emu.profiles.calibration.table_store import SHIPPED, CalibrationStore
from csd_emu.util.node_names import HOST
from csd_lab.bench.planner.planner_draws import StepNoise, draw, draw_noise
from csd_lab.bench.planner.planner_world import World, stannis_batches
from firmware_agent.common.shipped_code import ShippedCode
from host.config.preference import NAMED, Preference
from host.config.sync_section import TuningSection
from host.core.tuning.speed_table import SpeedTable
from host.policies.selection.cluster import Cluster, Configuration, Counts, DeviceKind, Floats

# Model -> (side of its images, parameters in float32, buffers): as published with torchvision's models; Inception v3
# without its auxiliary classifier.
MODELS = {
    "vgg16": (224, 138_357_544, 0),
    "alexnet": (224, 61_100_840, 0),
    "resnet50": (224, 25_557_032, 53_120),
    "mobilenet_v2": (224, 3_504_872, 34_112),
    "inception_v3": (299, 23_834_568, 34_432),
}
LINKS_BYTES_PER_SECOND = (2e9, 125e6, 12.5e6)
LATENCY_SECONDS = 50e-6
# Drives of each class, as the cases have them. With the host they make 479 configurations.
COUNTS = (4, 3, 3, 2)
# Steps of all devices together that the job's records are worth, and that every configuration is run for.
STEPS = 1000
# `power` alone would always have the smallest drive on its own, so it comes with a deadline: so many times as long as
# the fastest configuration takes.
DEADLINE = 2.0
# Metrics within this share are equal.
TIE = 0.01
# The slowest device's batch is given, as in other benches. If STANNIS looks for it, it takes the knee of a curve that
# is flat within a few per cent: a swing of 2 % moves that from 5 records to 300, and with it what the exchange costs
# per record. Then the oracle's batches are no better than anybody's, and it is not configurations that are compared.
TUNING = TuningSection(slow_batch=32, knee=0.2)
_LARGEST_BATCH, _HOST_LARGEST_BATCH = 1024, 4096
_LABEL_BYTES = 8
_DRIVE, _HOST = "newport", "xeon-4108"


@dataclass(frozen=True)
class PlannerCase:
    """What is to be planned.

    Attributes:
        number: among the cases; with the seed it decides what is drawn.
        model: of `MODELS`.
        preference: of `host.config.preference.NAMED`.
        link_bytes_per_second: of the host's side, as the planner is told.
        unused_powered: whether drives that take no part idle, or draw nothing.
    """

    number: int
    model: str
    preference: str
    link_bytes_per_second: float
    unused_powered: bool


def list_cases() -> list[PlannerCase]:
    """Return all: five models, four preferences, three links; unused drives stay powered in every second one."""
    each = product(enumerate(MODELS), enumerate(NAMED), enumerate(LINKS_BYTES_PER_SECOND))
    return [
        PlannerCase(number, model, preference, rate, (m + p + s) % 2 == 0)
        for number, ((m, model), (p, preference), (s, rate)) in enumerate(each)
    ]


def drive_classes() -> tuple[Profile, ...]:
    """Return four classes: three that ship, of which two are equal on paper, and one of faster cores.

    Nobody sells the last one with published figures: four A72 at 1.8 GHz, about twice as many instructions per cycle as
    an A53, and more watts.
    """
    drive, source = get_profile(_DRIVE), "assumed: a made-up drive, for the bench alone"
    fast = replace(
        drive,
        name="a72",
        clock_hertz=Sourced(1.8e9, source),
        instructions_per_cycle=Sourced(1.9, source),
        link_bytes_per_second=Sourced(1e9, source),
        power=replace(drive.power, idle_watts=Sourced(7.0, source), core_watts=Sourced(1.2, source)),
    )
    return drive, get_profile("solana"), get_profile("generic-a53"), fast


def make_cluster(model: str, link_bytes_per_second: float, counts: Sequence[int] | None = None) -> Cluster:
    """Return what the planner is told: profiles, and nominal tables from those that ship.

    Args:
        model: of `MODELS`.
        link_bytes_per_second: of the host's side.
        counts: drives of each class; None for `COUNTS`.
    """
    side, parameters, buffers = MODELS[model]
    fixed, record, encode = _line(model)
    newport, host = get_profile(_DRIVE), get_profile(_HOST)
    kinds = []
    for profile, count in zip(drive_classes(), COUNTS if counts is None else counts, strict=True):
        kernels, serial = (profile.scale(phase) / newport.scale(phase) for phase in ("forward", "encode"))
        nodes = tuple(f"{profile.name}-{number:02d}" for number in range(count))
        speed = _table(profile.name, fixed * kernels + encode * serial, record * kernels, _LARGEST_BATCH)
        kinds.append(DeviceKind(profile.name, nodes, profile, speed, encode * serial))
    worth = _ratio(host.ratio)
    speed = _table(host.name, (fixed + encode) / worth, record / worth, _HOST_LARGEST_BATCH)
    kinds.append(DeviceKind(HOST, (HOST,), host, speed, encode / worth, local=True))
    return Cluster(
        kinds=tuple(kinds),
        host=host,
        link=Link(link_bytes_per_second, LATENCY_SECONDS),
        state_bytes=4 * (parameters + buffers),
        gradient_bytes=4 * parameters,
        record_bytes=3 * side * side + _LABEL_BYTES,
    )


def all_configurations(cluster: Cluster) -> list[Configuration]:
    """Return every one but the empty one."""
    ranges = [range(count + 1) for count in cluster.counts]
    return [configuration for configuration in product(*ranges) if any(configuration)]


@dataclass(frozen=True)
class Truth:
    """What every configuration of a world costs, for all of the job's records.

    Attributes:
        world: it.
        noise: the steps that everything is run for, the same ones for all.
        tuning: how STANNIS plans, for all.
        records: of the job.
        configurations: in the order of the arrays.
        batches: of each kind, for each configuration: what STANNIS plans from the true curves.
        seconds: (configurations,) of the whole training.
        joules: (configurations,) of it.
        preference: by what they are judged.
        deadline_seconds: that they must keep; None without.
    """

    world: World
    noise: StepNoise
    tuning: TuningSection
    records: float
    configurations: tuple[Configuration, ...]
    batches: tuple[tuple[int, ...], ...]
    seconds: Floats
    joules: Floats
    preference: Preference
    deadline_seconds: float | None

    @property
    def scores(self) -> Floats:
        """(configurations,) what is preferred; infinite for one that is late."""
        costs = zip(self.seconds.tolist(), self.joules.tolist(), strict=True)
        scores = np.array([self.score(seconds, joules) for seconds, joules in costs])
        late = self.deadline_seconds is not None and self.seconds > self.deadline_seconds
        return np.where(late, np.inf, scores)

    @property
    def best(self) -> int:
        """The number of the best configuration."""
        return int(self.scores.argmin())

    def cost(self, nodes: Sequence[str], batches: Sequence[int]) -> tuple[float, float]:
        """Return seconds and joules of the whole training with these nodes and batches of the kinds."""
        return cost_of(self.world, self.noise, self.records, self.world.spread(nodes, batches))

    def regret(self, seconds: float, joules: float) -> float:
        """Return metric / best - 1, at least 0; for one that is late at least the share by which it is."""
        best = float(self.scores[self.best])
        lost = math.exp(self.score(seconds, joules) - best) - 1
        late = 0.0 if self.deadline_seconds is None else seconds / self.deadline_seconds - 1
        return max(0.0, lost, late)

    def kept(self, seconds: float) -> bool:
        """Return whether the deadline is kept, within `TIE`."""
        return self.deadline_seconds is None or seconds <= (1 + TIE) * self.deadline_seconds

    def hit(self, seconds: float, joules: float) -> bool:
        """Return whether this is as good as the best within `TIE`, and in time, whichever devices it has."""
        return self.kept(seconds) and self.regret(seconds, joules) <= TIE

    def score(self, seconds: float, joules: float) -> float:
        """Return what is preferred, as `Preference.score` has it; the less the better."""
        return self.preference.score(seconds, joules / seconds, joules)


def cost_of(world: World, noise: StepNoise, records: float, batches: dict[str, int]) -> tuple[float, float]:
    """Return seconds and joules of so many records, at the mean of the steps of `noise`."""
    done = world.run(batches, noise)
    steps = records / sum(batches.values())
    return steps * float(done.seconds.mean()), steps * float(done.joules.mean())


def make_world(case: PlannerCase, seed: int, noise: float | None = None) -> World:
    """Return the case's world; `noise` as `csd_lab.bench.planner.planner_draws.draw` has it."""
    cluster = make_cluster(case.model, case.link_bytes_per_second)
    return World(cluster, draw(cluster, np.random.default_rng((seed, case.number, 0)), noise), case.unused_powered)


def job_records(cluster: Cluster) -> float:
    """Return what `STEPS` steps of all devices train on, with the batches that STANNIS plans from nominal tables."""
    counts = cluster.counts
    return float(STEPS * np.dot(counts, nominal_batches(cluster, counts)))


def nominal_batches(cluster: Cluster, configuration: Configuration, tuning: TuningSection = TUNING) -> tuple[int, ...]:
    """Return what STANNIS plans from the nominal tables, for a link that carries what it says."""
    tables = [kind.speed for kind in cluster.kinds if kind.speed is not None]
    drives = sum(count for kind, count in zip(cluster.kinds, configuration, strict=True) if not kind.local)
    carried = cluster.link.carry_together(np.full(drives, float(cluster.state_bytes)))
    sync_seconds = 2 * float(carried.max(initial=0.0))
    return stannis_batches(tables, configuration, tuning, sync_seconds)


def find_truth(case: PlannerCase, seed: int, noise: float | None = None, tuning: TuningSection = TUNING) -> Truth:
    """Run every configuration to the end, each with the batches that STANNIS plans from the true curves."""
    world = make_world(case, seed, noise)
    steps = draw_noise(world.draws, STEPS, np.random.default_rng((seed, case.number, 1)))
    records = job_records(world.cluster)  # of the same job, whatever the tuning
    configurations = tuple(all_configurations(world.cluster))
    batches = tuple(world.best_batches(configuration, tuning) for configuration in configurations)
    each = (world.spread(world.first_nodes(of), by) for of, by in zip(configurations, batches, strict=True))
    costs = np.array([cost_of(world, steps, records, one) for one in each])
    seconds, joules = costs[:, 0], costs[:, 1]
    deadline = DEADLINE * float(seconds.min()) if case.preference == "power" else None
    preference = Preference(**NAMED[case.preference])
    return Truth(world, steps, tuning, records, configurations, batches, seconds, joules, preference, deadline)


def fixed_rules(cluster: Cluster) -> dict[str, Configuration]:
    """Return what people would do without a planner.

    ``all devices``; ``host only``; ``smallest``: one drive, of the class that draws least when busy; ``fastest``: all
    drives of the fastest class and the host.
    """
    drives = [number for number, kind in enumerate(cluster.kinds) if not kind.local]
    smallest = min(drives, key=lambda number: _busy_watts(cluster.kinds[number].profile))
    fastest = max(drives, key=lambda number: _rate(cluster.kinds[number].speed))
    host = tuple(int(kind.local) for kind in cluster.kinds)
    return {
        "all devices": cluster.counts,
        "host only": host,
        "smallest": tuple(int(number == smallest) for number in range(len(cluster.kinds))),
        "fastest": tuple(
            count if number == fastest or cluster.kinds[number].local else 0
            for number, count in enumerate(cluster.counts)
        ),
    }


@cache
def _line(model: str) -> tuple[float, float, float]:
    """Return a straight line through a Newport's shipped table: fixed seconds, seconds of a record, of encoding."""
    side, newport = MODELS[model][0], get_profile(_DRIVE)
    table = CalibrationStore(SHIPPED).require(ShippedCode(model), (3, side, side), _DRIVE)
    phases = [newport.device_seconds(table.step_seconds(batch)) for batch in table.batches]
    seconds = [phase.forward + phase.backward for phase in phases]
    record, fixed = np.polyfit(table.batches, seconds, 1).tolist()
    return max(fixed, 0.01 * record), record, table.encode_seconds_median * newport.scale("encode")


def _table(name: str, fixed_seconds: float, record_seconds: float, largest: int) -> SpeedTable:
    batches: Counts = np.arange(1, largest + 1)
    return SpeedTable(name, np.asarray(fixed_seconds + record_seconds * batches, np.float64))


def _ratio(ratio: HostRatio | None) -> float:
    return 1.0 if ratio is None else ratio.middle.value


def _busy_watts(profile: Profile) -> float:
    power: Power = profile.power
    return power.idle_watts.value + profile.cores.value * power.core_watts.value + power.dram_watts.value


def _rate(speed: SpeedTable | None) -> float:
    return 0.0 if speed is None else speed.records_per_second(speed.largest_batch)
