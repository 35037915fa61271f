"""When HyperTune makes a retune, and what for."""

from __future__ import annotations

from dataclasses import dataclass

from host.policies.batching.step_watts import StepWatts


@dataclass(frozen=True)
class RetuneRules:
    """When a retune is made (see `host.config.sync_section.TuningSection`).

    Attributes:
        threshold: a step that takes this share longer or shorter than believed is a deviation.
        window: so many in a row, the same way, are a change.
        cost_steps: what a retune costs, in steps of the present length.
        probe_steps: a parked device computes a record every so many steps, to be seen when it recovers.
        watts: of the array, for the most records per joule; None for the most per second.
    """

    threshold: float = 0.08
    window: int = 3
    cost_steps: float = 0.1
    probe_steps: int = 8
    watts: StepWatts | None = None
