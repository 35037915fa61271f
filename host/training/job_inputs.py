"""A job with its data and model loaded: the input of split learning, the planner and a run's request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from csd_emu.config.array_file import NATIVE, SAMPLED, ArrayConfig
from csd_emu.util.record_shape import Shape
from firmware_agent.common.losses.objective import ObjectiveSpec
from firmware_agent.common.shipped_code import ShippedCode
from host.config.job_file import JobConfig
from host.config.plugins.plugin_loading import Plugin
from host.core.datasets import Dataset
from host.core.device_time import COUNTED, MODELLED, WALL, CountedCycles, StepModel
from host.core.evaluation import Evaluator
from host.fleet.shards import ShardAssignment


@dataclass(frozen=True)
class JobData:
    """A job on an array, with its data.

    Attributes:
        config, job, spec: what was asked for.
        dataset: that is trained on.
        objective: that is minimised.
        dealt: which records lie where.
    """

    config: ArrayConfig
    job: JobConfig
    spec: ShippedCode
    dataset: Dataset
    objective: ObjectiveSpec
    dealt: ShardAssignment

    @property
    def shape(self) -> Shape:
        """Of one record's input."""
        return self.dataset.shape

    @property
    def record_bytes(self) -> int:
        """Bytes of a record, as stored."""
        return self.dataset.record_bytes


@dataclass(frozen=True)
class JobInputs(JobData):
    """And with its model.

    Attributes:
        evaluator: of the data's held-out records.
        models: device -> what its steps cost, of those whose seconds are modelled.
        optimizer: the job's, if it is a class of the user's own.
        cycles: device -> what turns its counted seconds into those of cycles, where the array asks for these.
    """

    evaluator: Evaluator
    models: Mapping[str, StepModel]
    cycles: Mapping[str, CountedCycles] = field(default_factory=dict, kw_only=True)
    optimizer: Plugin | None = field(default=None, kw_only=True)

    @property
    def wall(self) -> bool:
        """Whether drives' seconds are this machine's own, of which there are no tables."""
        config = self.config
        native = NATIVE in config.engines and config.clock != SAMPLED
        return native and not any(device.name in self.models for device in config.list_devices())

    def clock_notes(self) -> list[str]:
        """Return what must be known of the drives' seconds, in sentences."""
        clocks: dict[str, list[str]] = {}
        counted = SAMPLED if self.config.clock == SAMPLED else COUNTED
        for node in self.config.list_nodes():
            clock = counted if node.engine == self.config.counted_engine else WALL
            clocks.setdefault(MODELLED if node.name in self.models else clock, []).append(node.name)
        each = "; ".join(f"{clock}: {', '.join(names)}" for clock, names in sorted(clocks.items()))
        mixed = (
            f"its drives have different clocks ({each}): the array's seconds put them side by side as if they were "
            "one, and sums and means over drives mix them; compare drives of one clock"
        )
        other = "SGD with clip_norm" if self.job.by_sgd else self.job.chosen_optimiser.name
        updates = (
            f"{', '.join(clocks.get(MODELLED, ()))}: modelled from a calibration table that was measured with SGD, and "
            f"{other} updates the weights there: seconds of updates are SGD's"
        )
        differs = self.job.mode == "federated" and (not self.job.by_sgd or self.job.clip_norm is not None)
        batches = (
            f"{', '.join(clocks.get(MODELLED, ()))}: modelled from a calibration table, which has neither augment nor "
            "collate: seconds of steps are without them"
        )
        noted = [
            (mixed, len(clocks) > 1),
            (updates, differs and MODELLED in clocks),
            (batches, (self.job.augment or self.job.collate) and MODELLED in clocks),
        ]
        return [text for text, applies in noted if applies]
