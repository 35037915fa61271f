"""A federated run of the product's own host and trainer on modelled drives, until it holds a target accuracy."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from csd_emu.profiles.profile import End
from csd_lab.bench.federated.in_process_drives import in_process_fleet
from csd_lab.bench.harness import array_of, request_run
from firmware_agent.common.errors import DeviceError, Diverged
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.app.prepare import RunRequest
from host.config.job_file import JobConfig
from host.core.datasets import Dataset
from host.core.device_time import StepModel
from host.core.evaluation import Evaluator
from host.core.records import EventKind
from host.policies.aggregation import make_strategy
from host.training.accounting import make_accountant
from host.training.federated import FederatedTraining
from host.training.round_exchange import RoundExchange, job_frame

DRIVES, MODEL = 10, "digits_cnn"
ARRAY = array_of("federated", DRIVES, "native", clock="modelled", core_model="cycles")
# A target is reached in the first of so many rounds running that have the accuracy: a single good round is luck.
HELD_ROUNDS = 3


@dataclass(frozen=True)
class HeldTarget:
    """When a run ends.

    Attributes:
        accuracy: on held-out records, to be held for `HELD_ROUNDS` rounds.
        rounds: after so many a run is given up.
    """

    accuracy: float
    rounds: int


@dataclass(frozen=True)
class TrainedRound:
    """What a round came to.

    Attributes:
        accuracy: on held-out records, after it.
        seconds: of the array's time, modelled.
        joules: of all drives and the host, by the profiles' watts.
    """

    accuracy: float
    seconds: float
    joules: float


@dataclass(frozen=True)
class TargetCost:
    """What a run took until it held its target, or until it was given up: then the target costs more.

    Attributes:
        reached: whether it held the target.
        rounds: up to the first that held it, or all.
        seconds: of the array's time, modelled.
        joules: of all drives and the host, by the profiles' watts.
        last_accuracy: after the last round that was trained.
        refused: times that the host's screening left out what a drive returned.
    """

    reached: bool
    rounds: int
    seconds: float
    joules: float
    last_accuracy: float
    refused: int = 0


class RememberedSteps:
    """A model of a device's steps that composes each batch size once: rounds repeat the same ones."""

    def __init__(self, model: StepModel) -> None:
        """Remember what `model` says."""
        self._model = model
        self._step_seconds = functools.cache(model.step_seconds)

    def step_seconds(self, batch_size: int) -> PhaseSeconds:
        """Return the model's seconds of one step, per phase."""
        return self._step_seconds(batch_size)

    @functools.cached_property
    def encode_seconds(self) -> float:
        """The model's seconds of taking the weights out."""
        return self._model.encode_seconds

    def covers(self, batch_size: int) -> bool:
        """Return what the model does."""
        return self._model.covers(batch_size)

    def at(self, end: End | None) -> StepModel:
        """Return the model at one end of its bands."""
        return self._model.at(end)


def holds(target: HeldTarget, rounds: Sequence[TrainedRound]) -> bool:
    """Return whether the last `HELD_ROUNDS` rounds all have the target's accuracy."""
    last = rounds[-HELD_ROUNDS:]
    return len(last) == HELD_ROUNDS and all(one.accuracy >= target.accuracy for one in last)


def cost_of(target: HeldTarget, rounds: Sequence[TrainedRound], refused: int = 0) -> TargetCost:
    """Return what a run of these rounds, one at least, took.

    One that holds the target is charged up to the first of the rounds that do; any other with all rounds that the
    target allows, those that it did not train (for its weights were no numbers any more) at the mean of the others.
    """
    reached = holds(target, rounds)
    counted = rounds[: len(rounds) - HELD_ROUNDS + 1] if reached else rounds
    share = 1.0 if reached else target.rounds / len(rounds)
    return TargetCost(
        reached,
        len(counted) if reached else target.rounds,
        share * sum(one.seconds for one in counted),
        share * sum(one.joules for one in counted),
        rounds[-1].accuracy,
        refused,
    )


def thin_out(dataset: Dataset, records: int, seed: int) -> Dataset:
    """Return the data set with so many of its records to train on, drawn at random; what is held out stays."""
    kept = np.sort(np.random.default_rng(seed).permutation(len(dataset))[:records])
    return replace(dataset, fields={name: column[kept] for name, column in dataset.fields.items()})


def make_request(alpha: float, records: int, seed: int, keys: Mapping[str, Any]) -> RunRequest:
    """Return a run on digits dealt out to the drives by a Dirichlet distribution; `keys` are more of a job file's.

    Which records are where, the first weights and the orders of records depend on `alpha`, `records` and `seed` alone:
    they are the same for all `keys`.
    """
    base = _base_request(alpha, records, seed)
    job = JobConfig.model_validate(base.job.model_dump(exclude_unset=True) | dict(keys))
    evaluator = Evaluator(base.spec, base.dataset, seed)  # a run's own: it keeps the weights that it judged last
    strategy = make_strategy(job.strategy, job.momentum, evaluator.initial_weights())
    return replace(base, job=job, evaluator=evaluator, proximal=strategy.proximal)


@functools.lru_cache(maxsize=1)
def _base_request(alpha: float, records: int, seed: int) -> RunRequest:
    data = {"source": "digits", "partition": {"dirichlet": alpha}}
    prepared = request_run(ARRAY, {"model": MODEL, "data": data, "seed": seed})
    steps = RememberedSteps(next(iter(prepared.models.values())))  # all drives are alike
    dataset = thin_out(prepared.dataset, records, seed)
    return replace(prepared, dataset=dataset, models=dict.fromkeys(prepared.models, steps))


def run_to(target: HeldTarget, request: RunRequest, folder: Path) -> TargetCost:
    """Train until the target; the drives' shards are written into `folder`.

    Raises:
        CsdError: not even one round could be trained.
    """
    return asyncio.run(_run_to(target, request, folder))


async def _run_to(target: HeldTarget, request: RunRequest, folder: Path) -> TargetCost:
    refused, rounds = list[str](), list[TrainedRound]()
    job = request.job.model_copy(update={"rounds": target.rounds})
    names = [device.name for device in request.config.list_devices()]

    def on_event(device: str, what: EventKind, _: str) -> None:
        if what is EventKind.REJECTED:
            refused.append(device)

    async with in_process_fleet(request, folder) as fleet:
        frame = job_frame(job, request.spec, request.objective, request.proximal)
        exchange = RoundExchange(job, frame, fleet, lambda: names, on_event)
        accountant = make_accountant(request.config, request.models)
        training = FederatedTraining(job, names, exchange, accountant, request.evaluator)
        while not training.done and not holds(target, rounds):
            try:
                record = await training.run_round()
            except (DeviceError, Diverged):
                if not rounds:
                    raise
                break
            rounds.append(TrainedRound(record.accuracy, record.array_seconds, record.total_joules))
    return cost_of(target, rounds, len(refused))
