"""Synchronous training of paced drives behind a shaped link, for `bench comm`: wall seconds of steps."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import TypeVar

import numpy as np
from scipy.stats import sem
from scipy.stats import t as student

from csd_emu.engines.shaping import Shape
from csd_lab.bench.communication import comm_nets
from csd_lab.bench.communication.comm_cases import DRIVES
from csd_lab.bench.harness import WATCHDOG_SECONDS, Bench, RunningDrives, array_of, request_run
from firmware_agent.common.send_queue import TransferSettings
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.slices import Array
from host.app.prepare import RunRequest
from host.config.job_file import DataSection
from host.core.datasets import synthetic_source
from host.fleet.lifecycle import ArrayRequest
from host.policies.transfer.transfer_tuner import FixedSending, TransferTuner
from host.training.split.split_model import NONE
from host.training.transfer_policy import TransferPolicy

# So many steps behind a change of schedule still have something of the other one in them, and so has the last one
# before a change: it ends when the next one's parameters have come.
DROPPED_STEPS = 2
CONFIDENCE = 0.95
# One way, through the relay.
SHAPED_LATENCY_SECONDS = 1e-4
_RECORDS, _BATCH = 4000, 2
_SOURCE = synthetic_source(comm_nets.INPUT_SHAPE, comm_nets.CLASSES, _RECORDS)

T = TypeVar("T")


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


def ratio_interval(above: Sequence[Sequence[float]], below: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Return the ratio of the medians of blocks, and the ends of Student's t interval with `CONFIDENCE`.

    The interval is of the ratio's logarithm over the pairs of blocks. Steps of one block are not independent: drives
    keep to a pattern once they have one. Blocks are. A median, for what the machine held up says nothing of a schedule.

    Args:
        above: seconds in blocks; at least two.
        below: as many, each measured beside its counterpart.
    """
    logs = [math.log(median(one) / median(other)) for one, other in zip(above, below, strict=True)]
    ratio, reach = math.exp(fmean(logs)), float(student.ppf((1 + CONFIDENCE) / 2, len(logs) - 1) * sem(logs))
    return ratio, ratio * math.exp(-reach), ratio * math.exp(reach)


@dataclass(frozen=True)
class WallSteps:
    """What came of a run: wall seconds of each step, and the weights."""

    step_seconds: list[float]
    weights: Mapping[str, Array]


class WallRuns:
    """Runs on one started array, one after the other; `progress` is shown what goes on."""

    def __init__(self, bench: Bench, drives: RunningDrives) -> None:
        """Use drives whose link is shaped."""
        self._drives, self._seed, self.progress = drives, bench.seed, bench.progress

    async def run(self, spec: ShippedCode, turns: Blocks, bytes_per_second: float) -> WallSteps:
        """Train a model for the steps of `turns` over a link of that bandwidth."""
        return await self.run_tuned(spec, _Turning(turns), turns.total, bytes_per_second)

    async def run_tuned(
        self, spec: ShippedCode, tuner: TransferTuner, steps: int, bytes_per_second: float
    ) -> WallSteps:
        """Train a model for so many steps over a link of that bandwidth, sent as `tuner` decides."""
        request = self._request(spec, steps, _BATCH, NONE)
        transfers = TransferPolicy(tuner, overlap=True)
        return await self._train(replace(request, communication=transfers), bytes_per_second)

    async def run_placed(
        self, spec: ShippedCode, placement: str, batch: int, steps: int, bytes_per_second: float
    ) -> list[float]:
        """Train a model with a placement, nothing overlapping, and return the wall seconds of its steps but the first.

        In the first ones drives build the model and take their memory.
        """
        request = self._request(spec, steps + DROPPED_STEPS, batch, placement)
        return (await self._train(request, bytes_per_second)).step_seconds[DROPPED_STEPS:]

    def _request(self, spec: ShippedCode, steps: int, batch: int, placement: str) -> RunRequest:
        """Return a run of so many steps of a model, with so many records of each drive in each."""
        job = {
            **{"model": spec.name, "mode": "sync", "rounds": 1, "batch_size": batch, "learning_rate": 0.01},
            **{"seed": self._seed, "placement": placement, "sync": {"round_steps": steps}},
            **{"data": {"source": _SOURCE}, "watchdog": f"{WATCHDOG_SECONDS} s"},
        }
        return request_run(self._drives.config, job, spec)

    async def _train(self, request: RunRequest, bytes_per_second: float) -> WallSteps:
        await self._drives.dial_anew()
        await asyncio.to_thread(self._drives.engine.shape, Shape(bytes_per_second))
        async with self._drives.training(request) as training:
            record = await training.run_round()
            weights = {name: np.array(array) for name, array in training.weights.items()}
        return WallSteps([step.wall_seconds for step in record.steps], weights)


def on_wall(
    bench: Bench, bytes_per_second: float, work: Callable[[WallRuns], Awaitable[T]], shaped: str = "relay"
) -> T:
    """Do `work` on native drives on the wall clock behind a shaped link.

    A relay unless `shaped` says otherwise (see `csd_emu.config.array_file.LinkSection`): it serves drives in turn, as
    the model does. In a namespace TCP shares out the bandwidth, and without credit one drive may get half of it for a
    while.
    """
    bandwidth, latency = f"{bytes_per_second:.0f} B/s", f"{SHAPED_LATENCY_SECONDS} s"
    link = {"bandwidth": bandwidth, "latency": latency, "shaped": shaped}
    array = array_of(bench.name, DRIVES, "native", clock="wall", link=link)
    request = ArrayRequest(array, DataSection(source=_SOURCE, private=0.0), bench.seed)
    return bench.on_array(request, lambda drives: work(WallRuns(bench, drives)))
