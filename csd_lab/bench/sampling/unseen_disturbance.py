"""How soon a competing task is seen of which the clock ``sampled`` was not told."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from csd_emu.util.deadline import Deadline
from csd_lab.bench.harness import WATCHDOG_SECONDS, Bench, RunningDrives, array_of, request_run
from firmware_agent.common.frames.session_frames import Disturb, Disturbed
from host.app.prepare import RunRequest
from host.app.training_run import make_counter
from host.core.records import EventKind
from host.fleet.device_session import DeviceSession
from host.training.accounting import make_accountant
from host.training.sampling.sampler_machine import SamplerMachine
from host.training.training_protocol import Training

DRIVES, BATCH_SIZE = 2, 32
# Cgroup weights of the tasks, against the trainer's 100; each is begun and ended.
WEIGHTS = (100, 33, 300)
# What the counter notes of a step that lies outside its stratum.
CHANGED = "were usual"
# Steps before the first change, and at least between what was seen and the next one; each time one more, so that the
# changes come at all places between two checks.
QUIET_STEPS, GAP_STEPS = 20, 10
# After a change the other drives are looked at, too.
SETTLING_STEPS = 3
# A change that is not seen in so many steps is given up.
MOST_STEPS = 25


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """A change behind the counter's back.

    Attributes:
        weight: of the task that competes from now on; 0: it ends.
        before: the weight before.
        step: the first with it.
        steps: until it was seen, that step included; None if it was not.
        false: in how many of the quiet steps before it a change was seen.
    """

    weight: int
    before: int
    step: int
    steps: int | None
    false: int


class _Counted(NamedTuple):
    """A job whose steps are counted, and what was noted of them: such as that steps are counted anew."""

    training: Training
    seen: list[str]


def notice_disturbances(bench: Bench, weights: Sequence[int] = WEIGHTS) -> list[Notice]:
    """Begin and end tasks of these weights in the machine that counts a synchronous job's steps; return what was seen.

    The job has `DRIVES` native drives. What the counter sees of a change is a step that lies outside its stratum.

    Raises:
        CsdError: the drives, or the machine, cannot be started.
    """
    array = array_of("noticed", DRIVES, clock="sampled")
    most_steps = 1 + QUIET_STEPS + 2 * len(weights) * (GAP_STEPS + 2 * len(weights) + MOST_STEPS)
    job = {"model": "digits_cnn", "data": {"source": "digits"}, "mode": "sync", "batch_size": BATCH_SIZE}
    job |= {"rounds": most_steps, "sync": {"round_steps": 1}, "seed": bench.seed}
    request = request_run(array, job)

    async def work(drives: RunningDrives) -> list[Notice]:
        return await _notice_all(bench, request, drives, weights)

    return bench.on_array(request.array, work)


async def _notice_all(bench: Bench, request: RunRequest, drives: RunningDrives, weights: Sequence[int]) -> list[Notice]:
    async with (
        SamplerMachine(request.array, 0, bench.paths, bench.progress, _ignore) as machine,
        drives.training(request) as training,
    ):
        seen: list[str] = []

        def on_event(*told: str) -> None:
            seen.extend(detail for detail in told[2:] if CHANGED in detail)

        counter = make_counter(request, [machine], make_accountant(request.config, request.models), on_event)
        synchronous: Any = training
        synchronous.count_with(counter)
        counted, step, before = _Counted(training, seen), 1, 0
        found: list[Notice] = []
        for number, weight in enumerate(each for one in weights for each in (one, 0)):
            bench.progress.stage(f"weight {weight} behind the counter's back")
            quiet = GAP_STEPS + number if number else QUIET_STEPS
            await _run_steps(counted, SETTLING_STEPS, until_seen=False)
            false = await _run_steps(counted, quiet - SETTLING_STEPS, until_seen=False)
            await machine.work(partial(_disturb, weight))
            steps = await _run_steps(counted, MOST_STEPS, until_seen=True)
            found.append(Notice(weight=weight, before=before, step=step + quiet, steps=steps or None, false=false))
            step, before = step + quiet + (steps or MOST_STEPS), weight
        bench.progress.stage("")
        return found


async def _run_steps(counted: _Counted, count: int, until_seen: bool) -> int:
    """Train so many steps.

    Return in which of them a change was seen for the first time, ending there, 0 for none; else in how many.
    """
    seen = 0
    for number in range(1, count + 1):
        before = len(counted.seen)
        await counted.training.run_round()
        if len(counted.seen) != before:
            seen += 1
            if until_seen:
                return number
    return 0 if until_seen else seen


async def _disturb(weight: int, session: DeviceSession) -> None:
    deadline = Deadline(WATCHDOG_SECONDS)
    await session.send(Disturb(weight), deadline)
    await session.expect(Disturbed, deadline)


def _ignore(device: str, what: EventKind, detail: str) -> None:
    """Be told of an event."""
