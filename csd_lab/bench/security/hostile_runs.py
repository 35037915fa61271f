"""Runs with one hostile drive among four, and their judge."""

from __future__ import annotations

import asyncio
import math
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

import msgspec

from csd_emu.engines import DevicePlan, NativeEngine
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, RunningDrives, array_of, request_run
from csd_lab.bench.security.hostile_behaviour import HOSTILE, WITHIN_STEP, Behaviour
from csd_lab.testkit.final_weights import all_finite
from firmware_agent.common.errors import BootTimeout, CsdError, DeviceLost
from firmware_agent.common.shipped_code import ShippedCode
from host.app.prepare import RunRequest
from host.config.job_file import DataSection
from host.core.records import EventKind, EventRecord
from host.fleet.lifecycle import ArrayRequest

_COMMAND = [sys.executable, "-P", "-m", "csd_lab.bench.security.hostile_drive"]


class HostileEngine(NativeEngine):
    """A `NativeEngine` whose drive called `hostile` is a `hostile_drive`, honest until told otherwise."""

    def __init__(self, arrays_folder: Path, hostile: str) -> None:
        """Work below `arrays_folder`."""
        super().__init__(arrays_folder)
        self._name, self._listener = hostile, Listener()
        self._orders: Connection | None = None
        self._started: list[subprocess.Popen[bytes]] = []

    def _launch(self, plan: DevicePlan) -> int:
        if plan.device.name != self._name:
            return super()._launch(plan)
        command = [*_COMMAND, str(plan.folder), str(self._listener.address)]
        with open(plan.console, "wb") as console:
            self._started.append(subprocess.Popen(command, stdout=console, stderr=console, start_new_session=True))
        return self._started[-1].pid

    async def behave(self, behaviour: Behaviour) -> None:
        """Have the drive, which has dialled in, behave so from its next task on.

        Raises:
            DeviceLost: its process has ended.
        """
        try:
            await asyncio.to_thread(self._tell, behaviour.value.encode())
        except (OSError, EOFError) as error:
            raise DeviceLost(f"{self._name}: the hostile drive's process has ended; its console says why") from error

    def _tell(self, order: bytes) -> None:
        if self._orders is None:
            self._orders = self._listener.accept()
        self._orders.send_bytes(order)
        self._orders.recv_bytes()  # it has been taken in

    def close(self) -> None:
        """Let go of the drive."""
        super().close()
        for process in self._started:
            process.poll()
        self._listener.close()
        if self._orders is not None:
            self._orders.close()


# Events that say what a drive did wrong, or that it is not counted on any more.
_NAMING = (
    EventKind.REJECTED,
    EventKind.SET_ASIDE,
    EventKind.LOST,
    EventKind.FAILED,
    EventKind.REFUSED,
    EventKind.DIVERGING,
)
# An honest drive with one of these was driven out of the run.
_DRIVEN_OUT = (EventKind.LOST, EventKind.FAILED, EventKind.SET_ASIDE)
# A flipped sign that nobody was set aside for.
NEVER = 1e9


class CaseOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        mode: of the job.
        behaviour: of the hostile drive.
        seed: of the job.
        strategy: of a federated job.
        error: why the run ended before its time; empty if it did not.
        finite: whether all final weights are finite.
        accuracy: at the end, 0 to 1.
        reference: of the run without the hostile drive; None of a synchronous job.
        seconds: wall time.
        events: what the run told.
    """

    mode: str
    behaviour: Behaviour
    seed: int
    strategy: str
    error: str
    finite: bool
    accuracy: float
    reference: float | None
    seconds: float
    events: list[EventRecord]

    @property
    def lost(self) -> bool:
        """Whether the run did not come to its end with weights that can be used."""
        return bool(self.error) or not self.finite

    @property
    def name(self) -> str:
        """Mode, behaviour and seed."""
        return f"{self.mode} {self.behaviour} {self.seed}"

    def driven_out(self, hostile: str) -> set[str]:
        """Return the honest drives that were driven out."""
        return {event.device for event in self.events if event.what in _DRIVEN_OUT} - {hostile, "host"}

    def named(self, hostile: str) -> bool:
        """Whether an event says that something is wrong with the hostile drive."""
        return any(event.device == hostile and event.what in (*_NAMING, EventKind.NOTE) for event in self.events)

    def set_aside_step(self, hostile: str) -> float:
        """Return the step by which the hostile drive was set aside: that of the last refusal before; else `NEVER`."""
        step = NEVER
        for event in self.events:
            if event.device == hostile and (found := re.search(r"\bstep (\d+)", event.detail)):
                step = float(found[1])
            if event.device == hostile and event.what == EventKind.SET_ASIDE:
                return step
        return NEVER


def judge(outcomes: Sequence[CaseOutcome], hostile: str) -> dict[str, float]:
    """Return the figures; `hostile` is the name of the drive."""
    differences = [case.accuracy - case.reference for case in outcomes if case.reference is not None and not case.lost]
    flips = [case for case in outcomes if case.mode == "sync" and case.behaviour is Behaviour.SIGN_FLIP]
    return {
        "cases": len(outcomes),
        "runs_lost": sum(case.lost for case in outcomes),
        "honest_drives_lost": sum(len(case.driven_out(hostile)) for case in outcomes),
        "final_accuracy": min(differences, default=math.nan),
        "unnamed": sum(not case.named(hostile) for case in outcomes),
        "sign_flip_steps": max((case.set_aside_step(hostile) for case in flips), default=math.nan),
    }


def short_events(events: Iterable[EventRecord], hostile: str, most: int = 12) -> list[str]:
    """Return the first events that are of drives' conduct, as text, for a report."""
    telling = [event for event in events if event.what in _NAMING or event.device in ("host", hostile)]
    return [f"{event.device}: {event.what} {event.detail}"[:300] for event in telling[:most]]


DRIVES, HOSTILE_DRIVE = 4, "csd-03"
SEEDS = 3
ROUNDS, EPOCHS, STEPS = 8, 3, 30
# Where nothing but the watchdog ends the waiting for a drive it is short, or a case would take minutes.
_HANGING = (Behaviour.SLOW_DRIP, Behaviour.SILENCE, Behaviour.FLOOD)
SHORT_WATCHDOG_SECONDS, WATCHDOG_SECONDS = 4.0, 60.0
# The most that a case may take.
CASE_SECONDS = 120.0
MODEL = ShippedCode("digits_cnn")
# Of jobs in which drives do something for each other within a step: normalise together, or hand over to the host.
NORMED = ShippedCode(
    "normed.py:normed",
    """
from torch import nn

def normed():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1),
        nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10),
    )
""",
)
_MODELS = {"normalised": NORMED, "cut": NORMED}
DATA = {"source": "digits", "private": 1.0}
# What moves a mean without being absurd is held off by a strategy, not by a check.
ROBUST: dict[str, Any] = {"name": "trimmed_mean", "discard": 1}
_BY_STRATEGY = (Behaviour.SIGN_FLIP, Behaviour.SCALED)
_JOBS: dict[str, dict[str, Any]] = {
    "federated": {"mode": "federated", "rounds": ROUNDS, "epochs": EPOCHS},
    "sync": {"mode": "sync", "rounds": 1, "batch_size": 64, "sync": {"round_steps": STEPS}},
}
_NORMALISED = {"round_steps": STEPS, "batch_norm": "synchronised"}
_WITHIN_STEP_JOBS: dict[str, dict[str, Any]] = {
    "normalised": {"mode": "sync", "rounds": 1, "batch_size": 64, "sync": _NORMALISED},
    "cut": {"mode": "sync", "rounds": 1, "batch_size": 64, "sync": _NORMALISED, "placement": "3"},
}


def bench_hostile(bench: Bench, quick: bool = False) -> BenchReport:
    """Harm of one hostile drive among four to a run, its honest drives and its model, and whether it is named.

    Train `digits_cnn` on 4 native drives, the last of which is hostile in each of 12 ways, in both modes.

    Then in four ways of what drives do for each other within a synchronous step, of a small model: add up for batch
    normalisation, and hand over to the host's part of a cut model. 3 seeds, or with `quick` one. The hostile drive is
    the real agent with a layer on its session that changes, repeats or holds back what it sends, through the real wire.

    Figures: `cases`; `runs_lost`, those that did not end in time with finite weights; `honest_drives_lost`, other
    drives that were lost, failed or set aside; `final_accuracy`, the worst difference of a federated run's accuracy to
    that of the run of the three honest drives (a trimmed mean where signs are flipped or updates scaled, else FedAvg);
    `unnamed`, cases without an event that says what is wrong with the hostile drive; `sign_flip_steps`, after how many
    synchronous steps a drive with the wrong sign was set aside, the most of all seeds.
    """
    outcomes: list[CaseOutcome] = []
    for seed in range(bench.seed, bench.seed + (1 if quick else SEEDS)):
        request = ArrayRequest(array_of(bench.name, DRIVES, "native"), DataSection.model_validate(DATA), seed)

        async def work(drives: RunningDrives, seed: int = seed) -> list[CaseOutcome]:
            return await _Cases(bench, drives, seed).run()

        outcomes += bench.on_array(request, work, HostileEngine(bench.paths.arrays, HOSTILE_DRIVE))
    return bench.report("wall", judge(outcomes, HOSTILE_DRIVE), {"cases": _samples(outcomes)}, "native")


def _samples(outcomes: Sequence[CaseOutcome]) -> list[dict[str, Any]]:
    return [
        {
            **{name: getattr(case, name) for name in ("mode", "behaviour", "seed", "strategy", "error", "seconds")},
            **{name: getattr(case, name) for name in ("finite", "accuracy", "reference")},
            "named": case.named(HOSTILE_DRIVE),
            "driven_out": sorted(case.driven_out(HOSTILE_DRIVE)),
            "events": short_events(case.events, HOSTILE_DRIVE),
        }
        for case in outcomes
    ]


class _Cases:
    """All cases of one seed, on one array; between two of them every drive dials anew."""

    def __init__(self, bench: Bench, drives: RunningDrives, seed: int) -> None:
        self._drives, self._seed, self._progress = drives, seed, bench.progress

    async def run(self) -> list[CaseOutcome]:
        """Return what came of each; the runs without the hostile drive come first."""
        references: dict[str, float] = {}
        for strategy in ("fedavg", str(ROBUST["name"])):
            outcome = await self._case("federated", Behaviour.HONEST, strategy, None)
            if outcome.lost:
                raise BootTimeout(
                    f"the run of honest drives alone was lost: {outcome.error}; is this machine too busy?"
                )
            references[strategy] = outcome.accuracy
        outcomes = []
        cases: list[tuple[str, Behaviour]] = [(mode, behaviour) for mode in _JOBS for behaviour in HOSTILE]
        cases += [(mode, behaviour) for behaviour, modes in WITHIN_STEP.items() for mode in modes]
        for number, (mode, behaviour) in enumerate(cases):
            robust = mode == "federated" and behaviour in _BY_STRATEGY
            strategy = str(ROBUST["name"]) if robust else "fedavg"
            reference = references[strategy] if mode == "federated" else None
            self._progress.stage(f"seed {self._seed}: {mode}, {behaviour.value.replace('_', ' ')}")
            outcomes.append(await self._case(mode, behaviour, strategy, reference))
            self._progress.advance((number + 1) / len(cases))
        return outcomes

    async def _case(self, mode: str, behaviour: Behaviour, strategy: str, reference: float | None) -> CaseOutcome:
        await self._drives.engine.behave(behaviour)
        events: list[EventRecord] = []
        begin, error, accuracy, finite = time.monotonic(), "", 0.0, False

        def on_event(device: str, what: EventKind, detail: str) -> None:
            events.append(EventRecord(device, what, detail))

        # Without tables, whose seconds are the host's: what a drive says of its own clock shall count.
        request = replace(self._request(mode, strategy, behaviour), models={})
        names = self._drives.names[:-1] if behaviour is Behaviour.HONEST else self._drives.names
        try:
            async with asyncio.timeout(CASE_SECONDS), self._drives.training(request, on_event, names) as training:
                while not training.done:
                    accuracy = (await training.run_round()).accuracy
                finite = all_finite(training.weights)
        except TimeoutError:
            error = f"not done in {CASE_SECONDS:.0f} s"
        except CsdError as raised:
            error = f"{type(raised).__name__}: {raised}"
        seconds = time.monotonic() - begin
        await self._drives.engine.behave(Behaviour.HONEST)
        await self._drives.dial_anew()
        return CaseOutcome(
            mode=mode,
            behaviour=behaviour,
            seed=self._seed,
            strategy=strategy,
            error=error,
            finite=finite,
            accuracy=accuracy,
            reference=reference,
            seconds=seconds,
            events=events,
        )

    def _request(self, mode: str, strategy: str, behaviour: Behaviour) -> RunRequest:
        """Return a run of its own: an evaluator's model goes on from the weights that it judged last."""
        spec = _MODELS.get(mode, MODEL)
        wanted = {"model": spec.name, "data": DATA, "seed": self._seed, **(_JOBS | _WITHIN_STEP_JOBS)[mode]}
        wanted |= {"watchdog": f"{SHORT_WATCHDOG_SECONDS if behaviour in _HANGING else WATCHDOG_SECONDS} s"}
        if strategy == ROBUST["name"]:
            wanted["strategy"] = ROBUST
        return request_run(self._drives.config, wanted, spec)
