"""A run, read and checked: what `host/run.py` needs to know before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from csd_emu.array import ArrayConfig
from csd_emu.calibration import CalibrationStore
from csd_emu.paths import Paths
from csd_emu.profiles import get_profile
from firmware_agent.models import ModelSpec
from host.checkpoint import job_sha256
from host.datasets import Dataset, load_dataset
from host.device_time import StepModel, find_models
from host.evaluation import Evaluator
from host.job import JobConfig
from host.lifecycle import ArrayRequest
from host.shards import deal_out


@dataclass(frozen=True)
class RunRequest:
    """A run, read and checked: nothing in it can fail for being misspelt."""

    config: ArrayConfig
    job: JobConfig
    spec: ModelSpec
    dataset: Dataset
    evaluator: Evaluator
    models: Mapping[str, StepModel]

    @property
    def array(self) -> ArrayRequest:
        """What must be up for this run."""
        return ArrayRequest(self.config, self.job.data, self.job.seed)

    @property
    def portable_job(self) -> JobConfig:
        """The job as it can be run from a folder that holds the model's file under its own name."""
        if self.spec.source is None:
            return self.job
        path, _, function = self.job.model.partition(":")
        return self.job.model_copy(update={"model": f"{Path(path).name}:{function}"})

    @property
    def profiles(self) -> dict[str, dict[str, Any]]:
        """The profiles of drives and host, with all their figures and sources."""
        names = {device.profile for device in self.config.list_devices()} | {self.config.host.profile}
        return {name: asdict(get_profile(name)) for name in sorted(names)}

    @property
    def sha256(self) -> str:
        """Hash of all that decides the run's trajectory."""
        return job_sha256(self.config, self.portable_job, self.spec.source, [self.profiles, self.models])


def check_run(config: ArrayConfig, job: JobConfig, spec: ModelSpec) -> RunRequest:
    """Return the run if model, data and array fit together; nothing is started.

    Raises:
        ConfigurationError: they do not.
    """
    dataset = load_dataset(job.data.source, job.seed)
    deal_out(dataset, job.data, len(config.list_devices()), job.seed)
    channels, height, width = dataset.images.shape[1:]
    models = find_models(config, spec, (channels, height, width), CalibrationStore(Paths.default().calibration))
    return RunRequest(config, job, spec, dataset, Evaluator(spec, dataset, job.seed), models)
