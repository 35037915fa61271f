"""Synchronous training of paced drives behind a shaped link, for `bench comm`: wall seconds of steps."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev

import numpy as np
from scipy.stats import t as student

from csd_emu.config.array_file import ArrayConfig
from csd_emu.engines import NativeEngine
from csd_emu.engines.shaping import Shape
from csd_lab.bench.communication import comm_nets
from csd_lab.bench.communication.comm_cases import DRIVES
from csd_lab.bench.harness import PROFILE, WATCHDOG_SECONDS
from firmware_agent.common.models import ModelSpec
from firmware_agent.common.send_queue import TransferSettings
from firmware_agent.common.slices import Array
from host.app.prepare import RunRequest, prepare_run
from host.app.training_run import make_participants, make_sync_training
from host.config.job_file import JobConfig
from host.config.resolve import ResolvedRun
from host.core.datasets import synthetic_source
from host.fleet.lifecycle import StartedArray
from host.policies.transfer.transfer_tuner import FixedSending
from host.training.accounting import make_accountant
from host.training.run_faults import RunFaults
from host.training.split.split_model import NONE
from host.training.transfer_policy import TransferPolicy

# So many steps behind a change of schedule still have something of the other one in them, and so has the last one
# before a change: it ends when the next one's parameters have come.
DROPPED_STEPS = 2
CONFIDENCE = 0.95
# One way, through the relay.
SHAPED_LATENCY_SECONDS = 1e-4
_RECORDS, _BATCH = 4000, 2
_DIAL_SECONDS = 60.0


@dataclass(frozen=True)
class Blocks:
    """Steps that take turns: `blocks` blocks of `steps` steps for each of the settings, in the order A B B A A B ...

    Attributes:
        settings: what takes turns.
        steps: of a block; the first ones and the last one are dropped.
        blocks: of each of the settings.
    """

    settings: tuple[TransferSettings, ...]
    steps: int
    blocks: int

    @property
    def total(self) -> int:
        """How many steps that are."""
        return self.steps * self.blocks * len(self.settings)

    def which(self, step: int) -> int:
        """Return which of the settings a step has, from 1."""
        turn, place = divmod(max(0, step - 1) // self.steps, len(self.settings))
        return place if turn % 2 == 0 else len(self.settings) - 1 - place

    def sending(self, step: int) -> TransferSettings:
        """Return a step's settings."""
        return self.settings[self.which(step)]

    def sort(self, seconds: Sequence[float]) -> list[list[list[float]]]:
        """Return the seconds of each of the settings' blocks, in order, without the steps beside a change.

        Args:
            seconds: (total,) of all steps, from the first.
        """
        kept: list[list[list[float]]] = [[[] for _ in range(self.blocks)] for _ in self.settings]
        since = 0
        for number, value in enumerate(seconds, 1):
            since = since + 1 if number > 1 and self.which(number) == self.which(number - 1) else 1
            goes_on = number < len(seconds) and self.which(number) == self.which(number + 1)
            if since > DROPPED_STEPS and goes_on:
                kept[self.which(number)][(number - 1) // (self.steps * len(self.settings))].append(value)
        return kept


class _Turning(FixedSending):
    """A `host.policies.transfer.transfer_tuner.TransferTuner` that takes turns, whatever it sees."""

    def __init__(self, turns: Blocks) -> None:
        super().__init__(turns.settings[0])
        self._turns = turns

    def sending(self, step: int) -> TransferSettings:
        return self._turns.sending(step)


@dataclass(frozen=True)
class RatioInterval:
    """A ratio, and between what it lies with `CONFIDENCE`."""

    ratio: float
    low: float
    high: float

    def holds(self, ratio: float) -> bool:
        """Return whether the interval contains it."""
        return self.low <= ratio <= self.high


def ratio_interval(above: Sequence[Sequence[float]], below: Sequence[Sequence[float]]) -> RatioInterval:
    """Return the ratio of the medians of blocks, and Student's t interval of its logarithm over the pairs of blocks.

    Steps of one block are not independent: drives keep to a pattern once they have one. Blocks are. A median, for what
    the machine held up says nothing of a schedule.

    Args:
        above: seconds in blocks; at least two.
        below: as many, each measured beside its counterpart.
    """
    logs = [math.log(median(one) / median(other)) for one, other in zip(above, below, strict=True)]
    ratio, spread = math.exp(fmean(logs)), stdev(logs)
    reach = float(student.ppf((1 + CONFIDENCE) / 2, len(logs) - 1)) * spread / math.sqrt(len(logs))
    return RatioInterval(ratio, ratio * math.exp(-reach), ratio * math.exp(reach))


def wall_config(bytes_per_second: float, name: str = "comm") -> ArrayConfig:
    """Return the array of the bench called `name`: native drives on the wall clock behind a shaped link.

    A relay, everywhere: it serves drives in turn, as the model does. In a namespace TCP shares out the bandwidth, and
    without credit one drive may get half of it for a while.
    """
    return ArrayConfig.model_validate(
        {
            "name": f"bench-{name}",
            "engine": "native",
            "clock": "wall",
            "link": {
                "bandwidth": f"{bytes_per_second:.0f} B/s",
                "latency": f"{SHAPED_LATENCY_SECONDS} s",
                "shaped": "relay",
            },
            "devices": [{"profile": PROFILE, "count": DRIVES}],
        }
    )


def wall_request(
    config: ArrayConfig, spec: ModelSpec, steps: int, seed: int, batch: int = _BATCH, placement: str = NONE
) -> RunRequest:
    """Return a run of so many steps of a model on that array, with so many records of each drive in each."""
    job = JobConfig.model_validate(
        {
            "model": spec.name,
            "data": {"source": synthetic_source(comm_nets.INPUT_SHAPE, comm_nets.CLASSES, _RECORDS)},
            "mode": "sync",
            "rounds": 1,
            "batch_size": batch,
            "learning_rate": 0.01,
            "seed": seed,
            "placement": placement,
            "sync": {"round_steps": steps},
            "watchdog": f"{WATCHDOG_SECONDS} s",
        }
    )
    return prepare_run(ResolvedRun(config, job, spec))


@dataclass(frozen=True)
class Ran:
    """What came of a run: wall seconds of each step, and the weights."""

    step_seconds: list[float]
    weights: Mapping[str, Array]


class WallRuns:
    """Runs on one started array, one after the other."""

    def __init__(self, started: StartedArray, engine: NativeEngine, config: ArrayConfig, seed: int) -> None:
        """Use an array whose link is shaped."""
        self._started, self._engine, self._config, self._seed = started, engine, config, seed

    async def run(self, spec: ModelSpec, turns: Blocks, bytes_per_second: float, seed: int | None = None) -> Ran:
        """Train a model for the steps of `turns` over a link of that bandwidth."""
        await self._dial_anew()
        await asyncio.to_thread(self._engine.shape, Shape(bytes_per_second))
        request = wall_request(self._config, spec, turns.total, self._seed if seed is None else seed)
        return await self._train(replace(request, communication=TransferPolicy(_Turning(turns), overlap=True)))

    async def run_placed(
        self, spec: ModelSpec, placement: str, batch: int, steps: int, bytes_per_second: float
    ) -> list[float]:
        """Train a model with a placement, nothing overlapping, and return the wall seconds of its steps but the first.

        In the first ones drives build the model and take their memory.
        """
        await self._dial_anew()
        await asyncio.to_thread(self._engine.shape, Shape(bytes_per_second))
        request = wall_request(self._config, spec, steps + DROPPED_STEPS, self._seed, batch, placement)
        return (await self._train(request)).step_seconds[DROPPED_STEPS:]

    async def _train(self, request: RunRequest) -> Ran:
        if request.sync is None:
            raise RuntimeError("the bench asked for another mode")
        accountant, nodes = make_accountant(self._config), request.sync.nodes
        async with RunFaults(self._started.fleet, nodes, accountant.time, lambda *_: None) as faults:
            training = make_sync_training(
                *(request, make_participants(request, self._started.fleet, self._list_existing, lambda *_: None)),
                *(accountant, faults),
            )
            record = await training.run_round()
        weights = {name: np.array(array) for name, array in training.weights.items()}
        return Ran([step.wall_seconds for step in record.steps], weights)

    async def _dial_anew(self) -> None:
        """Have all drives dial again: a session whose slices overlap takes one job."""
        fleet, old = self._started.fleet, set(self._started.fleet.sessions().values())
        for session in old:
            session.close("another job follows")
        async with asyncio.timeout(_DIAL_SECONDS):
            while True:
                newcomer, live = fleet.newcomer, fleet.sessions()
                if len(live) == DRIVES and not old & set(live.values()):
                    return
                await newcomer.wait()

    def _list_existing(self) -> list[str]:
        return self._engine.list_devices(self._config.name)
