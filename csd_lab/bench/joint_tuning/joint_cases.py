"""Scenarios of `bench together`: arrays, links, models, and what happens while a job runs; drawn by seed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from csd_emu.config.array_file import ArrayConfig
from csd_emu.util.record_shape import Shape
from csd_lab.bench.harness import array_of
from firmware_agent.common.layer_costs import LayerWork
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.slices import Array
from host.app.load_inputs import make_inputs
from host.app.prepare import RunRequest, find_tables, prepare_loaded
from host.config.job_file import JobConfig
from host.config.resolve import ResolvedRun
from host.core.datasets import Dataset
from host.core.evaluation import Evaluator, Structure

CLASSES = 10
# So many that few steps are the last one of an epoch, which is smaller.
RECORDS = 200_000
STEPS = 200
# Spread of a step's seconds on the clock `counted`, standard deviation; in so many values.
NOISE, NOISES = 0.0005, 4


@dataclass(frozen=True)
class TrainedCase:
    """A model of a shipped calibration table, and the images that it takes."""

    model: str
    shape: Shape
    arguments: Mapping[str, int] = field(default_factory=dict)


MODELS = {
    "late heavy layers": TrainedCase("digits_cnn", (1, 8, 8)),
    "many small tensors": TrainedCase("mobilenet_v2", (3, 224, 224)),
    "few bytes": TrainedCase("squeezenet", (3, 224, 224)),
    "small images": TrainedCase("mobilenet_v2", (3, 32, 32), {"num_classes": CLASSES}),
    "many bytes": TrainedCase("resnet50", (3, 32, 32), {"num_classes": CLASSES}),
}
PROFILES = ("newport", "generic-a53", "solana")
SLOWED, CUT, LOST, JOINING = "slowed", "link cut", "lost", "joining"
DISTURBANCES = (SLOWED, CUT, LOST, JOINING)


@dataclass(frozen=True)
class JointScenario:
    """A job, an array, and what happens.

    Attributes:
        seed: that it was drawn by.
        model: key of `MODELS`.
        counts: drives of each profile.
        bandwidth, latency, shared: of the link; bytes per second, seconds.
        kind: of what happens.
        device: whom it happens to, by number; nobody where the link is cut.
        begin, end: share of the job's records done when it does, and when it is over, 0 to 1.
        factor: speed that is left, of a drive that is slowed, or of the link.
    """

    seed: int
    model: str
    counts: tuple[int, ...]
    bandwidth: float
    latency: float
    shared: bool
    kind: str
    device: int
    begin: float
    end: float
    factor: float

    @property
    def name(self) -> str:
        """For people."""
        drives = " + ".join(f"{n} {p}" for n, p in zip(self.counts, PROFILES, strict=True) if n)
        link = f"{self.bandwidth / 1e6:.0f} MB/s{' shared' * self.shared}"
        return f"{self.seed}: {self.model}, {drives}, {link}, {self.kind}"

    def array(self) -> ArrayConfig:
        """Return its array: native drives whose seconds are modelled."""
        names = ("newp", "gena", "sola")
        groups = [
            {"profile": profile, "name": name, "count": count}
            for profile, name, count in zip(PROFILES, names, self.counts, strict=True)
            if count
        ]
        link = {"bandwidth": f"{self.bandwidth:.0f} B/s", "latency": f"{self.latency:.9f} s", "shared": self.shared}
        return array_of(f"together-{self.seed}", groups, "native", clock="modelled", core_model="cycles", link=link)


def draw_scenario(seed: int) -> JointScenario:
    """Return the scenario of a seed: ranges as issue 32 of the project has them."""
    random = np.random.default_rng([32, seed])
    profiles = random.permutation(len(PROFILES))[: random.integers(1, len(PROFILES) + 1)]
    total = int(random.integers(max(4, len(profiles)), 25))
    edges = np.sort(random.choice(np.arange(1, total), len(profiles) - 1, replace=False))
    counts = np.zeros(len(PROFILES), np.int64)
    counts[profiles] = np.diff([0, *edges, total])
    kind = str(random.choice(DISTURBANCES))
    begin = float(random.uniform(0.15, 0.6))
    return JointScenario(
        seed,
        str(random.choice(list(MODELS))),
        tuple(counts.tolist()),
        float(10 ** random.uniform(7, 9)),
        float(random.uniform(20e-6, 200e-6)),
        bool(random.random() < 0.7),
        kind,
        int(random.integers(total)),
        begin,
        1.0 if kind == JOINING or random.random() < 0.5 else float(random.uniform(begin + 0.15, 0.95)),
        float(random.uniform(0.25, 0.75)) if kind == SLOWED else 0.1,
    )


class ScenarioWorld:
    """What happens in a scenario (`csd_lab.bench.joint_tuning.simulated_training.SimulatedWorld`)."""

    def __init__(self, scenario: JointScenario) -> None:
        """Take the drives' names from the scenario's array."""
        self._scenario = scenario
        self._device = scenario.array().list_devices()[scenario.device].name
        random = np.random.default_rng([33, scenario.seed])
        self._noise = (1 + NOISE * random.standard_normal(NOISES)).tolist()
        self._turns = random.integers(NOISES, size=1024).tolist()

    def _goes_on(self, done: float) -> bool:
        return self._scenario.begin <= done < self._scenario.end

    def slowness(self, device: str, done: float, records: int) -> float:
        """Return what compute seconds are multiplied by."""
        slowed = self._scenario.kind == SLOWED and device == self._device and self._goes_on(done)
        return 1 / self._scenario.factor if slowed else 1.0

    def link_share(self, done: float) -> float:
        """Return what is left of the link."""
        return self._scenario.factor if self._scenario.kind == CUT and self._goes_on(done) else 1.0

    def absent(self, done: float) -> Collection[str]:
        """Return who is not there."""
        kind = self._scenario.kind
        gone = self._goes_on(done) if kind == LOST else kind == JOINING and done < self._scenario.begin
        return {self._device} if gone else ()

    def noise(self, step: int) -> float:
        """Return what all compute seconds of a step are multiplied by."""
        noise: float = self._noise[self._turns[step % len(self._turns)]]
        return noise


class _KnownModel(Evaluator):
    """An evaluator that looks at its model once."""

    def __init__(self, spec: ShippedCode, dataset: Dataset) -> None:
        super().__init__(spec, dataset, 0)
        self._structure, self._layers, self._weights = super().structure(), super().layers(), super().initial_weights()

    def structure(self) -> Structure:
        return self._structure

    def layers(self) -> tuple[LayerWork, ...]:
        return self._layers

    def initial_weights(self) -> dict[str, Array]:
        return dict(self._weights)  # nobody changes them


@cache
def load_model(model: str) -> tuple[ShippedCode, Dataset, Evaluator]:
    """Return a model of `MODELS`, images without content, and what looks at it."""
    case = MODELS[model]
    spec = ShippedCode(case.model, None, dict(case.arguments))
    images, labels = np.zeros((1, *case.shape), np.uint8), np.zeros(1, np.int64)
    many = np.broadcast_to(images, (RECORDS, *case.shape)), np.broadcast_to(labels, (RECORDS,))
    named = tuple(map(str, range(CLASSES)))
    dataset = Dataset.of_images(f"{model} without content", many, (images, labels), 1 / 255)
    dataset = replace(dataset, class_names=named)
    return spec, dataset, _KnownModel(spec, dataset)


def request_of(scenario: JointScenario, **keys: Any) -> RunRequest:
    """Return the run of a scenario's job with these keys of a job file."""
    spec, dataset, evaluator = load_model(scenario.model)
    job = JobConfig.model_validate(
        {
            "model": spec.name,
            "model_arguments": dict(spec.arguments),
            "data": {"source": "synthetic:1x1x1"},
            "mode": "sync",
            "rounds": 1,
            "sync": {"round_steps": STEPS},
            "seed": scenario.seed,
            **keys,
        }
    )
    config = scenario.array()
    store = find_tables(config)
    resolved = ResolvedRun(config, job, spec)
    return prepare_loaded(resolved, make_inputs(config, job, spec, store, dataset, evaluator), store)


TUNERS: Mapping[str, Mapping[str, Any]] = {
    "batches": {"tuner": "hypertune"},
    "transfers": {"communication": {"schedule": "autobyte"}},
    "split": {"placement": "auto"},
    "devices": {"planner": {"prefer": "time"}},
}
