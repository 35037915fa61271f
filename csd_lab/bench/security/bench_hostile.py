"""Harm of one hostile drive among four to a run, its honest drives and its model, and whether it is named."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import bench_config, report
from csd_lab.bench.security.hostile_behaviour import HOSTILE, WITHIN_STEP, Behaviour
from csd_lab.bench.security.hostile_engine import HostileEngine
from csd_lab.bench.security.hostile_judge import CaseOutcome, judge, short_events
from firmware_agent.common.errors import BootTimeout, CsdError
from firmware_agent.common.models import ModelSpec
from host.app.prepare import RunRequest, prepare_run
from host.app.training_run import make_participants, make_sync_training
from host.config.job_file import DataSection, JobConfig
from host.config.resolve import ResolvedRun
from host.core.records import EventKind, EventRecord, OnEvent
from host.fleet.lifecycle import ArrayRequest, StartedArray
from host.fleet.temporary_array import run_on_engine
from host.training.accounting import Accountant, make_accountant
from host.training.federated import FederatedTraining
from host.training.round_exchange import RoundExchange, job_frame
from host.training.run_faults import RunFaults
from host.training.training_protocol import Training

DRIVES, HOSTILE_DRIVE = 4, "csd-03"
SEEDS = 3
ROUNDS, EPOCHS, STEPS = 8, 3, 30
# Where nothing but the watchdog ends the waiting for a drive it is short, or a case would take minutes.
_HANGING = (Behaviour.SLOW_DRIP, Behaviour.SILENCE, Behaviour.FLOOD)
SHORT_WATCHDOG_SECONDS, WATCHDOG_SECONDS = 4.0, 60.0
# The most that a case may take.
CASE_SECONDS, JOIN_SECONDS = 120.0, 60.0
MODEL = ModelSpec("digits_cnn")
# Of jobs in which drives do something for each other within a step: normalise together, or hand over to the host.
NORMED = ModelSpec(
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


def run(paths: Paths, progress: Progress, seed: int, quick: bool = False) -> BenchReport:
    """Train `digits_cnn` on 4 native drives, the last of which is hostile in each of 12 ways, in both modes.

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
    for number in range(seed, seed + (1 if quick else SEEDS)):
        config = bench_config("hostile", DRIVES, "native")
        engine = HostileEngine(paths.arrays, HOSTILE_DRIVE)
        request = ArrayRequest(config, DataSection.model_validate(DATA), number)

        async def work(started: StartedArray, engine: HostileEngine, number: int = number) -> list[CaseOutcome]:
            return await _Cases(started, engine, number, progress).run()

        outcomes += run_on_engine(engine, request, paths, progress, work)
    return report("hostile", "wall", seed, judge(outcomes, HOSTILE_DRIVE), {"cases": _samples(outcomes)}, "native")


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

    def __init__(self, started: StartedArray, engine: HostileEngine, seed: int, progress: Progress) -> None:
        self._fleet, self._engine, self._seed, self._progress = started.fleet, engine, seed, progress
        self._config = bench_config("hostile", DRIVES, "native")
        self._names = [device.name for device in self._config.list_devices()]

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
        await self._engine.behave(behaviour)
        events: list[EventRecord] = []
        begin, error, accuracy, finite = time.monotonic(), "", 0.0, False

        def on_event(device: str, what: EventKind, detail: str) -> None:
            events.append(EventRecord(device, what, detail))

        # Without tables, whose seconds are the host's: what a drive says of its own clock shall count.
        request = replace(self._request(mode, strategy, behaviour), models={})
        accountant = make_accountant(self._config)
        async with RunFaults(self._fleet, self._names, accountant.time, on_event) as faults:
            names = self._names[:-1] if behaviour is Behaviour.HONEST else self._names
            try:
                async with asyncio.timeout(CASE_SECONDS):
                    training = self._training(request, names, accountant, faults, on_event)
                    while not training.done:
                        accuracy = (await training.run_round()).accuracy
                finite = all(bool(np.isfinite(array).all()) for array in training.weights.values())
            except TimeoutError:
                error = f"not done in {CASE_SECONDS:.0f} s"
            except CsdError as raised:
                error = f"{type(raised).__name__}: {raised}"
        seconds = time.monotonic() - begin
        await self._begin_anew()
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
        return prepare_run(ResolvedRun(self._config, JobConfig.model_validate(wanted), spec))

    def _training(
        self, request: RunRequest, names: list[str], accountant: Accountant, faults: RunFaults, on_event: OnEvent
    ) -> Training:
        fleet, job = self._fleet, request.job
        if request.sync is not None:
            participants = make_participants(request, fleet, self._list_existing, on_event)
            return make_sync_training(request, participants, accountant, faults)
        frame = job_frame(job, request.spec, request.dataset.image_scale, request.proximal)
        exchange = RoundExchange(
            *(job, frame, fleet, self._list_existing, on_event, faults.before_task), clock_of=accountant.time.clock
        )
        return FederatedTraining(job, names, exchange, accountant, request.evaluator, on_event)

    def _list_existing(self) -> list[str]:
        return self._engine.list_devices(self._config.name)

    async def _begin_anew(self) -> None:
        """Have every drive, honest again, dial in a new session.

        Raises:
            BootTimeout: one does not.
        """
        await self._engine.behave(Behaviour.HONEST)
        old = set(self._fleet.sessions().values())
        for session in old:
            session.close("the case is over")
        try:
            async with asyncio.timeout(JOIN_SECONDS):
                while True:
                    newcomer = self._fleet.newcomer
                    missing = {*self._names} - {
                        d for d, session in self._fleet.sessions().items() if session not in old
                    }
                    if not missing:
                        return
                    await newcomer.wait()
        except TimeoutError:
            raise BootTimeout(f"{', '.join(sorted(missing))} did not dial in again; the console says why") from None
