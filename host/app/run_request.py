"""A run, read and checked: what `host/app/run_job.py` needs to know before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from csd_emu.config.array_file import QEMU, ArrayConfig
from csd_emu.profiles import get_profile
from host.config.job_file import JobConfig
from host.config.job_plugins import NO_PLUGINS, Plugins
from host.config.server_group import ServerGroup
from host.core.device_time import COUNTED, MODELLED, WALL, StepModel
from host.core.layer_time_shares import BY_ARITHMETIC, Shares
from host.fleet.checkpoint import job_sha256
from host.fleet.lifecycle import ArrayRequest
from host.policies.split.cut_decision import CutDecision
from host.training.job_inputs import JobInputs
from host.training.selection.planning import Planning
from host.training.split.decide_cut import explain
from host.training.split.split_model import SplitModelInfo
from host.training.sync_plan import SyncPlan
from host.training.transfer_policy import UNSLICED, TransferPolicy

_NOT_COVERED = (
    "modelled from a calibration table that has no row near batch size {}; it can be off by a third: "
    "measure more with csd-emu calibrate"
)


@dataclass(frozen=True)
class RunRequest(JobInputs):
    """A run, read and checked: nothing in it can fail for being misspelt.

    A cut that was left to us has its layer's name in the job.

    Attributes:
        sync: plan of a synchronous job.
        expected: device -> what its steps should cost undisturbed, of those with a calibration table.
        communication: how a synchronous job's steps are sent.
        plugins: the user's own strategy or tuner.
        proximal: the strategy's mu, which drives add to their loss.
        placed: where the model is cut; None if nothing is moved.
        host_model: what the whole model's steps cost on the host, if a table says it.
        decision: why the model is cut there, or not; None if that was not left to us.
        planning: what chooses the devices that train; None if all do.
        server_group: the servers that train together, of which `config` is this one's array; None if there is one.
        shares: what each layer has of a step's seconds, as measured on a drive or by arithmetic.
    """

    sync: SyncPlan | None = None
    expected: Mapping[str, StepModel] = field(default_factory=dict)
    communication: TransferPolicy = UNSLICED
    plugins: Plugins = NO_PLUGINS
    proximal: float = 0.0
    placed: SplitModelInfo | None = None
    host_model: StepModel | None = None
    decision: CutDecision | None = None
    planning: Planning | None = None
    server_group: ServerGroup | None = None
    shares: Shares = BY_ARITHMETIC

    @property
    def array(self) -> ArrayRequest:
        """What must be up for this run."""
        among = None if self.server_group is None else tuple(self.server_group.devices)
        return ArrayRequest(self.config, self.job.data.resolved(self.job.mode), self.job.seed, among=among)

    @property
    def notes(self) -> list[str]:
        """What must be known of the run's figures, in sentences."""
        clocks = _clock_notes(self.config, self.models)
        if self.sync is not None:
            placed = [] if self.placed is None else self.placed.notes(self.job)
            decided = [] if self.decision is None else explain(self.decision)
            return [*self.sync.notes, *clocks, *self.communication.notes(self.job), *decided, *placed]
        size = self.job.batch_size
        guessed = [name for name, model in self.models.items() if not model.covers(size)]
        return ([f"{', '.join(guessed)}: {_NOT_COVERED.format(size)}"] if guessed else []) + clocks

    @property
    def portable_job(self) -> JobConfig:
        """The job as it can be run from a folder that holds the user's files under their own names."""
        job = self.plugins.portable(self.job)
        if self.spec.source is None:
            return job
        path, _, function = self.job.model.partition(":")
        return job.model_copy(update={"model": f"{Path(path).name}:{function}"})

    @property
    def user_files(self) -> dict[str, str]:
        """Name -> text of the user's own files, without which the run cannot be resumed."""
        model = {} if self.spec.source is None else {self.portable_job.model.partition(":")[0]: self.spec.source}
        return model | {each.file_name: each.source for each in self.plugins if each.file_name and each.source}

    @property
    def profiles(self) -> dict[str, dict[str, Any]]:
        """The profiles of drives and host, with all their figures and sources."""
        config = self.config if self.server_group is None else self.server_group.whole
        names = {device.profile for device in config.list_devices()} | {config.host.profile}
        return {name: asdict(get_profile(name)) for name in sorted(names)}

    @property
    def sha256(self) -> str:
        """Hash of all that decides the run's trajectory, on this server."""
        return self.trajectory_sha256(self.config)

    def trajectory_sha256(self, config: ArrayConfig) -> str:
        """Return the same for the array `config`: this server's, or that of all servers."""
        figures: list[Any] = [self.profiles, self.models]
        figures += [] if self.sync is None else [self.sync.batches]
        figures += [self.plugins.facts] if self.plugins.facts else []
        figures += [self.placed.layer] if self.placed is not None else []
        figures += [self.server_group.sha256] if self.server_group is not None else []
        return job_sha256(config, self.portable_job, self.spec.source, figures)


def _clock_notes(config: ArrayConfig, models: Mapping[str, StepModel]) -> list[str]:
    """Return what must be known of an array whose drives have different clocks."""
    clocks: dict[str, list[str]] = {}
    for node in config.list_nodes():
        clock = COUNTED if node.engine == QEMU else MODELLED if node.name in models else WALL
        clocks.setdefault(clock, []).append(node.name)
    if len(clocks) < 2:
        return []
    each = "; ".join(f"{clock}: {', '.join(names)}" for clock, names in sorted(clocks.items()))
    return [
        f"its drives have different clocks ({each}): the array's seconds put them side by side as if they were one, "
        "and sums and means over drives mix them; compare drives of one clock"
    ]
