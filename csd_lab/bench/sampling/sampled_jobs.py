"""Eleven jobs of different models, batch sizes, modes, tuners and disturbances, for `bench sampled`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from csd_emu.config.array_file import ArrayConfig
from csd_lab.bench.harness import array_of


@dataclass(frozen=True)
class SampledJob:
    """A job of the bench.

    Attributes:
        name: of the job.
        what: it is about.
        job: content of its job file, but for the seed.
        array: its drives, and more keys of an array file.
        quick: whether `--quick` has it.
    """

    name: str
    what: str
    job: Mapping[str, Any]
    array: Mapping[str, Any]
    quick: bool = False

    @property
    def varies(self) -> bool:
        """Whether two counted runs may differ: a tuner or planner decides from seconds, or a task competes."""
        return not {"tuner", "planner", "disturb"}.isdisjoint(self.job)

    def content(self, seed: int) -> dict[str, Any]:
        """Return the content of its job file."""
        return {"model": "digits_cnn", "data": {"source": "digits"}, **self.job, "seed": seed}

    def config(self) -> ArrayConfig:
        """Return its array."""
        sections = {"devices": 3, "core_model": "cycles", **self.array}
        return array_of(f"sampled-{self.name}", sections.pop("devices"), **sections)


_UNEQUAL = [{"profile": "newport", "count": 2}, {"profile": "generic-a53", "name": "small"}]
_IMAGES = {"source": "synthetic:3x32x32:10:2000"}
JOBS = (
    SampledJob(
        "quickstart",
        "examples/quickstart: federated, dirichlet 0.5, batch 32, until the target is reached",
        {
            "data": {"source": "digits", "partition": {"dirichlet": 0.5}},
            "rounds": 12,
            "epochs": 2,
            "batch_size": 32,
            "target": {"accuracy": 0.95},
        },
        {},
        quick=True,
    ),
    SampledJob(
        "unequal-rounds",
        "federated, fedprox, three profiles, dirichlet 0.3, two of three drives a round, batch 16",
        {
            "data": {"source": "digits", "partition": {"dirichlet": 0.3}},
            "strategy": "fedprox",
            "participation": {"count": 2},
            "rounds": 8,
            "batch_size": 16,
        },
        {"devices": [{"profile": "newport"}, {"profile": "generic-a53"}, {"profile": "solana"}]},
    ),
    SampledJob(
        "hypertune",
        "examples/hypertune, 140 steps: unequal drives, a host that trains, a disturbance",
        {
            "data": {"source": "digits", "private": 0.5},
            "mode": "sync",
            "tuner": "hypertune",
            "sync": {"round_steps": 10, "tuning": {"slow_batch": 4}},
            "disturb": [{"device": "csd-00", "at_step": 16, "steps": 20, "weight": 200}],
            "rounds": 14,
        },
        {"devices": _UNEQUAL, "host": {"trains": True}},
        quick=True,
    ),
    SampledJob(
        "even-64",
        "sync, no tuner, batch 64, two drives",
        {"mode": "sync", "batch_size": 64, "rounds": 6, "sync": {"round_steps": 20}},
        {"devices": 2, "core_model": "instructions"},
    ),
    SampledJob(
        "stannis",
        "sync, stannis, unequal drives, all records private and unevenly dealt out",
        {
            "data": {"source": "digits", "partition": {"dirichlet": 0.5}, "private": 1.0},
            "mode": "sync",
            "tuner": "stannis",
            "sync": {"round_steps": 25, "tuning": {"slow_batch": 8}},
            "rounds": 6,
        },
        {"devices": _UNEQUAL, "core_model": "instructions"},
    ),
    SampledJob(
        "squeezenet",
        "sync, squeezenet of 32 pixels, batch 4, two drives",
        {"model": "squeezenet", "model_arguments": {"num_classes": 10}, "data": _IMAGES, "mode": "sync"}
        | {"batch_size": 4, "rounds": 5, "learning_rate": 0.01, "sync": {"round_steps": 20}},
        {"devices": 2},
    ),
    SampledJob(
        "mobilenet",
        "sync, mobilenet_v2 of 32 pixels, batch 2, batch normalisation over all drives",
        {"model": "mobilenet_v2", "model_arguments": {"num_classes": 10}, "data": _IMAGES, "mode": "sync"}
        | {"batch_size": 2, "rounds": 5, "learning_rate": 0.001}
        | {"sync": {"round_steps": 10, "batch_norm": "synchronised"}},
        {"devices": 2},
    ),
    SampledJob(
        "cut",
        "sync, the last layers on the host, batch 32, half of the records private",
        {
            "data": {"source": "digits", "private": 0.5},
            "mode": "sync",
            "placement": "auto",
            "batch_size": 32,
            "sync": {"round_steps": 10},
            "rounds": 12,
            "learning_rate": 0.1,
        },
        {},
    ),
    SampledJob(
        "planner",
        "examples/planner: which of four drives train is chosen",
        {
            "mode": "sync",
            "batch_size": 32,
            "sync": {"round_steps": 15},
            "planner": {"prefer": "edp", "steps": 3, "unused": "powered"},
            "rounds": 10,
            "learning_rate": 0.1,
        },
        {
            "link": {"bandwidth": "100 MB/s"},
            "devices": [{"profile": "newport", "count": 2}, {"profile": "generic-a53", "count": 2}],
        },
    ),
    SampledJob(
        "disturbed",
        "sync, no tuner, batch 64, a weak and a strong disturbance that overlap",
        {
            "mode": "sync",
            "batch_size": 64,
            "sync": {"round_steps": 10},
            "disturb": [
                {"device": "csd-01", "at_step": 25, "steps": 40, "weight": 50},
                {"device": "csd-00", "at_step": 50, "steps": 30, "weight": 200},
            ],
            "rounds": 10,
        },
        {"devices": 2},
    ),
    SampledJob(
        "two-disturbed",
        "sync, hypertune, batch 64, two disturbances that overlap",
        {
            "mode": "sync",
            "tuner": "hypertune",
            "sync": {"round_steps": 10, "tuning": {"slow_batch": 64}},
            "disturb": [
                {"device": "csd-01", "at_step": 25, "steps": 40, "weight": 100},
                {"device": "csd-00", "at_step": 55, "steps": 30, "weight": 50},
            ],
            "rounds": 10,
        },
        {"devices": 2},
    ),
)
