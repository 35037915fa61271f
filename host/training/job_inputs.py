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
from host.core.device_time import COUNTED, MODELLED, WALL, CountedCycles, StepModel, TableModel
from host.core.evaluation import Evaluator
from host.fleet.shards import ShardAssignment
from host.training.sync_plan import Records


@dataclass(frozen=True)
class JobData:
    """A job on an array, with its data.

    Attributes:
        config, job, spec: what was asked for.
        dataset: that is trained on.
        objective: that is minimised.
        dealt: which records lie where.
        in_place: device -> how many records it has said that lie there in place, and their hash.
    """

    config: ArrayConfig
    job: JobConfig
    spec: ShippedCode
    dataset: Dataset
    objective: ObjectiveSpec
    dealt: ShardAssignment
    in_place: Mapping[str, tuple[int, str]] = field(default_factory=dict, kw_only=True)

    @property
    def shape(self) -> Shape:
        """Of one record's input."""
        return self.dataset.shape

    @property
    def record_bytes(self) -> int:
        """Bytes of a record, as stored."""
        return self.dataset.record_bytes

    @property
    def records(self) -> Records:
        """What lies where; a drive with records in place counts as having as many as the data set until it says."""
        nodes, unheard = self.config.list_nodes(), (len(self.dataset), "")
        own = {node.name: self.in_place.get(node.name, unheard) for node in nodes if node.data is not None}
        counts = {node.name: len(private) for node, private in zip(nodes, self.dealt.private, strict=True)}
        counts |= {name: count for name, (count, _) in own.items()}
        hashes = {name: digest for name, (_, digest) in own.items()}
        return Records(tuple(counts.values()), len(self.dealt.public), self.record_bytes, hashes)


@dataclass(frozen=True)
class JobInputs(JobData):
    """And with its model.

    Attributes:
        evaluator: of the data's held-out records.
        models: device -> what its steps cost, of those whose seconds are modelled.
        optimizer: the job's, if it is a class of the user's own.
        cycles: device -> what turns its counted seconds into those of cycles, where the array asks for these.
        task: of its calibration tables, see `csd_emu.profiles.calibration.CalibrationKey`.
    """

    evaluator: Evaluator
    models: Mapping[str, StepModel]
    cycles: Mapping[str, CountedCycles] = field(default_factory=dict, kw_only=True)
    optimizer: Plugin | None = field(default=None, kw_only=True)
    task: str = field(default="", kw_only=True)

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
        plain = [
            name
            for name in clocks.get(MODELLED, ())
            if not (isinstance(model := self.models[name], TableModel) and model.table.task)
        ]
        updates = (
            f"{', '.join(plain)}: modelled from a calibration table that was measured with SGD, and "
            f"{other} updates the weights there: seconds of updates are SGD's"
        )
        differs = self.job.mode == "federated" and (not self.job.by_sgd or self.job.clip_norm is not None)
        batches = (
            f"{', '.join(plain)}: modelled from a calibration table, which has neither augment nor "
            "collate: seconds of steps are without them"
        )
        noted = [
            (mixed, len(clocks) > 1),
            (updates, differs and bool(plain)),
            (batches, bool(self.job.augment or self.job.collate) and bool(plain)),
        ]
        return [text for text, applies in noted if applies]
