"""Benches of synchronous training whose batches are chosen: STANNIS, and HyperTune beside competing work."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from csd_emu.config.array_file import ArrayConfig
from csd_emu.util.deadline import Deadline
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import WATCHDOG_SECONDS, Bench, RunningDrives, array_of, request_run
from firmware_agent.common.frames.measure_frames import Measure, Measured
from firmware_agent.common.models import ZOO
from host.app.prepare import RunRequest
from host.core.datasets import synthetic_source
from host.core.records import RoundRecord, StepRecord
from host.training.sync_plan import SyncPlan

MODEL = "digits_cnn"
# So many that no epoch ends while it is measured: its last step is smaller than the batches.
RECORDS = 100_000


def sync_request(config: ArrayConfig, job: Mapping[str, Any], seed: int) -> RunRequest:
    """Return a synchronous run on that array, with more keys of its job."""
    usual = {
        "model": MODEL,
        "data": {"source": synthetic_source(ZOO[MODEL].input_shape, ZOO[MODEL].classes, RECORDS)},
        "mode": "sync",
        "seed": seed,
        "watchdog": f"{WATCHDOG_SECONDS} s",
    }
    return request_run(config, usual | dict(job))


def run_one_round(request: RunRequest, bench: Bench) -> RoundRecord:
    """Start the request's array, train one round on it, end it."""

    async def work(drives: RunningDrives) -> RoundRecord:
        nodes = request.config.list_nodes()
        bench.progress.stage(f"{request.job.sync.round_steps} steps on {len(nodes)} nodes")
        async with drives.training(request) as training:
            return await training.run_round()

    return bench.on_array(request.array, work)


def imbalance(step: StepRecord) -> float:
    """Return (max - min) / max of the compute seconds of a step's devices."""
    seconds = [part.compute_seconds for part in step.devices]
    return 1 - min(seconds) / max(seconds)


def step_samples(steps: Sequence[StepRecord]) -> list[dict[str, Any]]:
    """Return each step's batches and compute seconds, by device, as a report's samples."""
    return [
        {
            "step": step.step,
            "batches": {part.device: part.batch_size for part in step.devices},
            "compute_seconds": {part.device: part.compute_seconds for part in step.devices},
            "expected_seconds": {part.device: part.expected_seconds for part in step.devices},
            "array_seconds": step.array_seconds,
            "disturbed": step.disturbed,
        }
        for step in steps
    ]


CLOCK = "counted+modelled"
PROFILES = ("newport", "solana", "generic-a53")
# The first steps are not counted: in them the drives' processes take their memory from the kernel.
WARM_UP_STEPS, STEPS = 3, 12


def bench_stannis(bench: Bench) -> BenchReport:
    """Balance of a step between unequal drives and their host, with STANNIS's batches.

    Train synchronously with STANNIS' batches on one VM of each of three profiles, and on the host.

    Figure: `step_imbalance`, the largest (max - min) / max of the compute seconds (forward, backward, encoding) of a
    step's participants, over all steps but the first few. The drives' seconds are counted, the host's modelled.
    """
    request = sync_request(
        array_of(bench.name, [{"profile": profile} for profile in PROFILES], host={"trains": True}),
        {"tuner": "stannis", "rounds": 1, "sync": {"round_steps": WARM_UP_STEPS + STEPS}},
        bench.seed,
    )
    record = run_one_round(request, bench)
    found = [imbalance(step) for step in record.steps[WARM_UP_STEPS:]]
    figures = {"step_imbalance": max(found), "step_imbalance_median": statistics.median(found)}
    return bench.report(CLOCK, figures, {"steps": step_samples(record.steps)})


VICTIM = "csd-00"
SLOW_BATCH = 256
# The smallest for which the figures are to hold.
SMALLEST_BATCH = 32
# Weights of competing work against the trainer's 100: they take 0.25, 0.5 and 0.75 of the drive's speed.
WEIGHTS = (33, 100, 300)
BLIP_WEIGHT, BLIPS = 300, (1, 2)
# Steps before the first disturbance, of each, and after it; of quiet around a blip.
QUIET, DISTURBED, AFTER, BLIP_GAP = 5, 8, 6, 5
_WATCHED_STEPS = 4


class DisturbedSpan(NamedTuple):
    """One disturbance: from step `begin` to the step before `end`."""

    weight: int
    begin: int
    end: int

    @property
    def lost(self) -> float:
        """Share of its speed that the drive loses, f."""
        return self.weight / (100 + self.weight)


def script() -> tuple[list[DisturbedSpan], list[DisturbedSpan], int]:
    """Return the disturbances, the blips, and how many steps there are."""
    step, phases, blips = 1 + QUIET, [], []
    for weight in WEIGHTS:
        phases.append(DisturbedSpan(weight, step, step + DISTURBED))
        step += DISTURBED + AFTER
    for length in BLIPS:
        blips.append(DisturbedSpan(BLIP_WEIGHT, step, step + length))
        step += length + BLIP_GAP
    return phases, blips, step - 1


def bench_hypertune(bench: Bench) -> BenchReport:
    """HyperTune beside competing work on a drive: time to see it, and share of the possible speed that is kept.

    Train synchronously on three VMs while gzip competes in one of them, with HyperTune.

    Figures, each the worst over the three disturbances:
    `over_best_min`: records per compute second once retuned, over the best that the tables allow with the global batch
    not grown, whoever has which part of it; `slowed_batch_over_table_min`: the slowed drive's batch over the largest
    that its table, slowed by the competing weight, allows in the step's time; `others_batch_kept_min`: of the others'
    batches, what was kept; `detect_steps_max` and `recover_steps_max`: steps from the disturbance's begin, or end, to
    the first with new batches; `blip_retunes`: retunes because of a disturbance of one or two steps; `monitor_share`:
    of a drive's CPU seconds in a step of 32 records, what watching it takes.
    """
    phases, blips, steps = script()
    request = sync_request(
        array_of(bench.name, 3),
        {
            "tuner": "hypertune",
            "rounds": 4,  # one is run: as in the middle of a longer run, the end is far
            "sync": {"round_steps": steps, "tuning": {"slow_batch": SLOW_BATCH}},
            "disturb": [
                {"device": VICTIM, "at_step": each.begin, "weight": each.weight, "steps": each.end - each.begin}
                for each in (*phases, *blips)
            ],
        },
        bench.seed,
    )
    share = measure_monitor_share(bench, SMALLEST_BATCH)
    record = run_one_round(request, bench)
    plan: Any = request.sync
    found = [_judge(phase, record, plan) for phase in phases]
    figures = {
        "over_best_min": min(each["over_best"] for each in found),
        "slowed_batch_over_table_min": min(each["slowed_batch_over_table"] for each in found),
        "others_batch_kept_min": min(each["others_batch_kept"] for each in found),
        "detect_steps_max": max(each["detect_steps"] for each in found),
        "recover_steps_max": max(each["recover_steps"] for each in found),
        "blip_retunes": float(sum(retune.step > blips[0].begin for retune in record.retunes)),
        "monitor_share": share,
    }
    samples = {
        "phases": found,
        "retunes": [{"step": r.step, "before": r.before, "after": r.after, "reason": r.reason} for r in record.retunes],
        "steps": step_samples(record.steps),
    }
    return bench.report("counted", figures, samples)


def measure_monitor_share(bench: Bench, batch_size: int) -> float:
    """Return the counted seconds of watching a step over those of the step itself, measured in one VM."""

    async def work(drives: RunningDrives) -> float:
        (session,) = await drives.prepare(bench.seed)
        bench.progress.stage("what watching a step costs")
        await session.send(Measure(batch_size, 3600.0, steps=_WATCHED_STEPS))
        measured = await session.expect(Measured, Deadline(WATCHDOG_SECONDS))
        return measured.monitor_seconds / (measured.seconds.total / measured.steps)

    return bench.on_machines(1, work)


def _judge(phase: DisturbedSpan, record: RoundRecord, plan: SyncPlan) -> dict[str, Any]:
    """Return what became of one disturbance; a device that was never retuned counts with what it kept."""
    by_step = {step.step: step for step in record.steps}
    before = dict(zip(plan.nodes, plan.batches, strict=True))
    shrunk = [retune for retune in record.retunes if retune.after[VICTIM] < retune.before[VICTIM]]
    during = [retune for retune in shrunk if phase.begin < retune.step <= phase.end]
    after = [r for r in record.retunes if phase.end < r.step <= phase.end + AFTER and r.after == before]
    detected = during[0].step if during else phase.end
    last = by_step[phase.end - 1]
    now = {part.device: part.batch_size for part in last.devices}
    allowed, best, best_kept = _best(phase, plan)
    settled = [_rate(by_step[step]) for step in range(max(r.step for r in during) if during else detected, phase.end)]
    rate = statistics.median(settled) if settled else _rate(last)
    return {
        "lost": phase.lost,
        "over_best": rate / best,
        "over_best_others_kept": rate / best_kept,
        "slowed_batch_over_table": now[VICTIM] / allowed,
        "others_batch_kept": min(now[node] / before[node] for node in plan.nodes if node != VICTIM),
        "detect_steps": float(detected - phase.begin),
        "recover_steps": float((after[0].step if after else phase.end + AFTER + 1) - phase.end),
        "best_records_per_compute_second": best,
        "table_batch": allowed,
    }


def _best(phase: DisturbedSpan, plan: SyncPlan) -> tuple[int, float, float]:
    """Return what the tables allow while the drive is slowed, by compute alone.

    Returns:
        The largest batch of the slowed drive that is done in the step's time; the most records per second with the
        global batch not grown, however it is dealt out; and the same if nobody else's batch changes.
    """
    tables = {node: plan.classes[node].speed for node in plan.nodes}
    planned = dict(zip(plan.nodes, plan.batches, strict=True))
    slowdowns = {node: 1 / (1 - phase.lost) if node == VICTIM else 1.0 for node in plan.nodes}
    whole = sum(planned.values())
    targets = {slowdowns[node] * t for node, table in tables.items() for t in table.step_seconds.tolist()}
    best = max(
        min(whole, sum(table.largest_within(target, slowdowns[node]) for node, table in tables.items())) / target
        for target in targets
    )
    step_seconds = max(tables[node].seconds(batch) for node, batch in planned.items())
    others = max(tables[node].seconds(batch) for node, batch in planned.items() if node != VICTIM)
    kept = max(
        (whole - planned[VICTIM] + batch) / max(others, slowdowns[VICTIM] * tables[VICTIM].seconds(batch))
        for batch in range(planned[VICTIM] + 1)
    )
    return tables[VICTIM].largest_within(step_seconds, slowdowns[VICTIM]), best, kept


def _rate(step: StepRecord) -> float:
    return step.samples / max(part.compute_seconds for part in step.devices)
