"""From what came of a step to what it cost the array."""

from __future__ import annotations

from host.sync.stepping import StepResult
from host.tuning.base import StepCost


def step_cost(result: StepResult) -> StepCost:
    """Return what a step cost the array, for whoever chooses its devices."""
    parts = result.accounted.devices
    joules = {part.device: sum(part.energy_joules.values()) for part in parts}
    for node, others in result.accounted.energy_joules.items():
        joules[node] = joules.get(node, 0.0) + sum(others.values())
    return StepCost(
        records={part.device: part.batch_size for part in result.devices},
        compute_seconds={part.device: part.compute_seconds for part in result.devices},
        array_seconds=result.accounted.array_seconds,
        joules=joules,
        missing=frozenset((*result.late, *result.failed)),
    )
