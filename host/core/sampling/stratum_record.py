"""Record of the strata on which a run's seconds rest: what was counted of each, and for how many steps it stands."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from host.core.sampling.strata import Stratum, StratumSamples

MOST_STRATA = 20
"""So many are listed, those with most seconds first."""


class StratumRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stratum: steps of one kind.

    Attributes:
        records, micro_batch, weight, stage, level: see `Stratum`.
        counted_steps: that virtual machines counted.
        steps: of all drives, that have the mean's seconds.
        mean_seconds: of the counted steps, on the virtual machine's clock, which no profile has scaled; None if none
            was counted.
        scatter: standard deviation of the counted steps' seconds over their mean; None of fewer than two.
    """

    records: int
    micro_batch: int
    weight: int
    stage: str
    level: int
    counted_steps: int
    steps: int
    mean_seconds: float | None
    scatter: float | None


def list_strata(samples: Mapping[Stratum, StratumSamples], steps: Mapping[Stratum, int]) -> list[StratumRecord]:
    """Return the strata of a run, those with most seconds first, at most `MOST_STRATA`.

    Args:
        samples: what was counted of each.
        steps: stratum -> steps that its mean stands for.
    """
    found = [
        StratumRecord(
            records=stratum.records,
            micro_batch=stratum.micro_batch,
            weight=stratum.weight,
            stage=stratum.stage,
            level=stratum.level,
            counted_steps=of.count,
            steps=steps.get(stratum, 0),
            mean_seconds=of.mean.total if of.count else None,
            scatter=of.deviation if of.count > 1 else None,
        )
        for stratum, of in ({stratum: StratumSamples() for stratum in steps} | {**samples}).items()
        if of.count or stratum in steps
    ]
    return sorted(found, key=lambda each: -(each.counted_steps + each.steps) * (each.mean_seconds or 0.0))[:MOST_STRATA]
