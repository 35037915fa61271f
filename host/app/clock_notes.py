"""What must be known of a run's seconds, in sentences."""

from __future__ import annotations

from collections.abc import Mapping

from csd_emu.config.array_file import SAMPLED, ArrayConfig
from host.config.job_file import JobConfig
from host.core.device_time import COUNTED, MODELLED, WALL, StepModel


def clock_notes(config: ArrayConfig, models: Mapping[str, StepModel]) -> list[str]:
    """Return what must be known of an array whose drives have different clocks."""
    clocks: dict[str, list[str]] = {}
    counted = SAMPLED if config.clock == SAMPLED else COUNTED
    for node in config.list_nodes():
        clock = MODELLED if node.name in models else counted if node.engine == config.counted_engine else WALL
        clocks.setdefault(clock, []).append(node.name)
    if len(clocks) < 2:
        return []
    each = "; ".join(f"{clock}: {', '.join(names)}" for clock, names in sorted(clocks.items()))
    return [
        f"its drives have different clocks ({each}): the array's seconds put them side by side as if they were one, "
        "and sums and means over drives mix them; compare drives of one clock"
    ]


def update_notes(job: JobConfig, models: Mapping[str, StepModel]) -> list[str]:
    """Return what must be known of tables, which are measured with SGD, where drives update weights in another way."""
    plain = job.chosen_optimiser.name.lower() == "sgd"
    if not models or job.mode == "sync" or (plain and job.clip_norm is None):
        return []
    other = "SGD with clip_norm" if plain else job.chosen_optimiser.name
    return [
        f"{', '.join(models)}: modelled from a calibration table that was measured with SGD, and {other} updates the "
        "weights there: the seconds of updates are SGD's"
    ]
