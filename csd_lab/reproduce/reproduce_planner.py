"""`csd-emu reproduce planner`: what was published on choosing the devices that train, beside ours."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from csd_emu.util.progress import Progress
from csd_lab.reproduce.output import check_output, write_planner
from csd_lab.reproduce.planner_result import Choosing, PlannerReport, PublishedHitRate, Sensitivity
from csd_lab.reproduce.verdict import undecidable
from host.core.device_time import MODELLED

OURS = "our planner"
HIT_RATE, WITHIN_5_PERCENT = 0.7667, 0.868
UNREAD_CASES = "which platforms, networks, metrics and steps its cases are of could not be read"
# How the rows of the published method begin.
METHOD = "Gu et al."
NOTES = (
    "Nothing was measured on a real drive. Worlds are made up: curves, contention, noise and watts are drawn per case "
    "and hidden from the planner, and every configuration is run in them for 1,000 steps (docs/benchmarks.md).",
    "Of Gu et al. the abstract could be read: three platforms, five models, 76.67 % of their cases. Which cases, what "
    "devices, how many steps and what overhead is not known; ours are other cases, so the two rates only stand beside "
    "each other.",
    "HAPI's figure is of another problem: where to split transfer learning between an object store and compute.",
    "Gu et al.'s method in our worlds: a few steps of every configuration. It and the fixed rules get the best batches "
    "that there are; our planner has to find its own.",
)


def reproduce_planner(seed: int, output: Path | None, progress: Progress) -> PlannerReport:
    """Play all cases; with `output`, write tables and a chart into that folder.

    Raises:
        EnvironmentUnfit: the files cannot be written.
    """
    from csd_lab.bench.planner.bench_planner import play_all  # the bench needs what benches need

    check_output(output)
    begin = time.monotonic()
    report = make_report(play_all(progress, seed), seed, time.monotonic() - begin)
    return report if output is None else write_planner(report, output)


def make_report(rows: Sequence[Mapping[str, Any]], seed: int, wall_seconds: float) -> PlannerReport:
    """Return the report of cases that were played (`csd_lab.bench.planner.bench_planner.play_all`)."""
    from csd_lab.bench.planner.bench_planner import compare, sensitivity, summarise

    ours = summarise([row["ours"] for row in rows])
    hard = [row["ours"]["hit"] for row in rows if row["hard"]]
    gu, hapi = "Gu et al., ICPADS 2019", "HAPI (arXiv 2210.08650)"
    choosing = [_choosing(OURS, ours), *(_choosing(who, figures) for who, figures in compare(rows).items())]
    return PlannerReport(
        clock=MODELLED,
        seed=seed,
        cases=len(rows),
        hard_cases=len(hard),
        hit_rate_hard=sum(hard) / len(hard) if hard else 0.0,
        beside=[
            PublishedHitRate(gu, "share of cases with the best configuration", HIT_RATE, ours["hit_rate"]),
            PublishedHitRate(hapi, "within 5 % of the best", WITHIN_5_PERCENT, ours["within_5_percent"]),
        ],
        choosing=choosing,
        sensitivity=list(_sensitivity(sensitivity(rows))),
        notes=list(NOTES),
        files=[],
        wall_seconds=wall_seconds,
        verdicts=[
            undecidable(gu, "hit_rate", HIT_RATE, f"{UNREAD_CASES}{_of_method(choosing)}"),
            undecidable(hapi, "hit_rate", WITHIN_5_PERCENT, "it splits transfer learning, which nothing here does"),
        ],
    )


def _of_method(choosing: Sequence[Choosing]) -> str:
    """Return what the published method, trials of every configuration, hits in our worlds."""
    rates = [f"{row.hit_rate:.1%} ({row.who})" for row in choosing if row.who.startswith(METHOD)]
    return f"; in our worlds the method hits {', '.join(rates)}" if rates else ""


def _choosing(who: str, figures: Mapping[str, float]) -> Choosing:
    return msgspec.convert({"who": who, **figures}, Choosing)


def _sensitivity(tried: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Iterator[Sensitivity]:
    for name, values in tried.items():
        for value, figures in values.items():
            errors = (figures["time_estimate_error_median"], figures["energy_estimate_error_median"])
            shared = (figures["hit_rate"], figures["mean_regret"], figures["overhead"])
            yield Sensitivity(name, float(value), *shared, *errors)
