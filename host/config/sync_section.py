"""Section of a job file for synchronous training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from csd_emu.util.config_files import Config

MAX_WEIGHT = 10_000
OptionValue = int | float | bool | str | list[float]
"""Of an option that is sent to drives."""
DeviceRef = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,12}$")]


class TuningSection(Config):
    """How batch sizes are chosen and kept (see docs/tuning.md).

    Attributes:
        knee: the slowest class gets the smallest batch whose rate is within this share of its best (STANNIS).
        slow_batch: that batch, given outright.
        margin: share of the slowest class's step time that the others stay below.
        largest_batch: no device gets more records per step.
        threshold: a step that takes this share longer, or shorter, than believed counts as a deviation (HyperTune).
        window: so many deviations in a row, the same way, are a change: a blip that is shorter never retunes.
        cost_steps: what a retune costs, in steps of the present length.
        objective: what HyperTune makes of the plan's batches: the most records per second (``rate``), or per joule by
            the profiles' watts (``energy``).
    """

    knee: float = Field(default=0.05, ge=0, lt=1, allow_inf_nan=False)
    slow_batch: int | None = Field(default=None, ge=1, le=65536)
    margin: float = Field(default=0.0, ge=0, lt=1, allow_inf_nan=False)
    largest_batch: int | None = Field(default=None, ge=1, le=65536)
    threshold: float = Field(default=0.08, gt=0, le=1, allow_inf_nan=False)
    window: int = Field(default=3, ge=1, le=1000)
    cost_steps: float = Field(default=0.1, ge=0, le=1e6, allow_inf_nan=False)
    objective: Literal["rate", "energy"] = "rate"


class OptimiserSection(Config):
    """The host's optimiser: a class of `torch.optim` or of the user's, and its arguments beside the learning rate."""

    name: str = "SGD"
    arguments: dict[str, OptionValue] = Field(default_factory=dict)
    # What messages call it and its arguments.
    key: ClassVar[str] = "sync.optimiser"
    options_key: ClassVar[str] = "sync.optimiser.arguments"


class DisturbSection(Config):
    """A competing job (gzip) in a drive: it starts before step `at_step` and runs for `steps` steps.

    `weight` is its cgroup weight; the trainer has 100, so it takes weight / (100 + weight) of the drive's core.
    """

    device: DeviceRef
    at_step: int = Field(ge=1, le=10_000_000)
    weight: int = Field(ge=1, le=MAX_WEIGHT)
    steps: int = Field(ge=1, le=10_000_000)


class SyncSection(Config):
    """Keys of synchronous jobs, together under ``sync``; `tuner` and `disturb` are the job's own.

    Attributes:
        optimiser: what steps the weights on the host.
        learning_rate_rule: how the rate follows the global batch B, B_0 being the first: constant, ``linear`` (rate x B
            / B_0; Goyal et al. 2017) or ``sqrt`` (rate x sqrt(B / B_0)).
        clip_norm: the whole gradient is scaled down to this norm; needs all tensors before any is stepped.
        batch_norm: statistics of each device's own records, of all together, or the running ones, unchanged.
        precision: in which drives compute.
        round_steps: a round (evaluation, checkpoint, record) has so many steps; None for whole passes over the data.
        micro_batch: at most so many records at a time in a drive; None for what its memory holds.
        overflow: a drive with more private records than its batches have room for either runs on while the others see
            public records again (``repeat``), or leaves some out, others each epoch (``subsample``).
        straggler_factor: a device that computes for longer than this times the step as expected is not waited for in
            that step: its gradient is dropped, its records come again. None waits for every device.
        max_host_share: share of the model's computing, in seconds of a drive, that a policy of `placement` may give to
            the host; a layer that is named is not bound by it.
    """

    former_keys: ClassVar[Mapping[str, str]] = {"patience": "straggler_factor"}

    optimiser: OptimiserSection = OptimiserSection()
    learning_rate_rule: Literal["constant", "linear", "sqrt"] = "linear"
    clip_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    batch_norm: Literal["device", "synchronised", "frozen"] = "device"
    precision: Literal["float32", "float64"] = "float32"
    round_steps: int | None = Field(default=None, ge=1, le=10_000_000)
    micro_batch: int | None = Field(default=None, ge=1, le=65536)
    overflow: Literal["repeat", "subsample"] = "repeat"
    straggler_factor: float | None = Field(default=None, gt=1, le=1000, allow_inf_nan=False)
    max_host_share: float = Field(default=1.0, ge=0, le=1, allow_inf_nan=False)
    tuning: TuningSection = TuningSection()

    def rules(self) -> Mapping[str, object]:
        """Return the rule of whole batches."""
        told = "batch_norm: synchronised needs a device's whole batch at once; leave micro_batch out"
        return {told: self.batch_norm == "synchronised" and self.micro_batch is not None}
