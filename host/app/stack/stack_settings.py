"""Settings of `.env`, checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from csd_emu.config.array_file import MAX_DEVICES, ArrayConfig, Dram, check_profile
from csd_emu.util.config_files import Config, RegisteredName, Watts, parse_config
from firmware_agent.common.errors import ConfigurationError
from host.config.plugins.kinds import TUNER

ARRAY = "csd"
WHERE = "environment"
# Inside the containers; what they are outside is docker-compose.yml's to say.
DRIVES_PORT, PAGE_PORT = 7000, 8080
# What the stack's Prometheus calls the host.
NAME = "host"
HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]{0,252}$")]


class StackSettings(Config):
    """The settings of one stack; keys are environment variables.

    Attributes:
        count: drives.
        profile: of each.
        memory: DRAM of each virtual machine.
        jobs: folder of job files, with what they name.
        job: the file to train.
        tuner: in place of the job file's, if given.
        power_cap: what the whole array may draw, for the alert; none if not given.
        runs: where the run directories are made.
        image: the ARM image in a file (see `csd-emu image export`); it is built if there is none.
        secrets: where passwords are made at the first start.
        host: the name under which the drives' container reaches the one that trains.
        start_seconds: how long the host waits for the array, in wall seconds.
    """

    count: int = Field(default=4, alias="CSD_COUNT", ge=1, le=MAX_DEVICES, strict=False)
    profile: str = Field(default="newport", alias="CSD_PROFILE")
    memory: Dram = Field(default="2 GiB", alias="CSD_DRAM")  # type: ignore[assignment]
    jobs: Path = Field(default=Path("/jobs"), alias="CSD_JOBS", strict=False)
    job: str = Field(default="job.yaml", alias="CSD_JOB")
    tuner: Annotated[str, RegisteredName(TUNER, offered=True)] | None = Field(default=None, alias="CSD_TUNER")
    power_cap: Watts | None = Field(default=None, alias="CSD_POWER_CAP")
    runs: Path = Field(default=Path("/runs"), alias="CSD_RUNS", strict=False)
    image: Path | None = Field(default=None, alias="CSD_EMU_IMAGE", strict=False)
    secrets: Path = Field(default=Path("/secrets"), alias="CSD_SECRETS", strict=False)
    host: HostName = Field(default="host", alias="CSD_HOST")
    start_seconds: float = Field(default=1800.0, alias="CSD_START_SECONDS", gt=0, allow_inf_nan=False, strict=False)

    @field_validator("profile")
    @classmethod
    def _known(cls, value: str) -> str:
        return check_profile(value, "drive")

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> StackSettings:
        """Read the settings; variables that are empty count as not set.

        Raises:
            ConfigurationError: one cannot be meant.
        """
        known = [field.alias for field in cls.model_fields.values() if field.alias is not None]
        given = {name: environment[name] for name in known if environment.get(name)}
        try:
            settings = parse_config(given, cls, WHERE)
            settings.array()
        except ConfigurationError as error:
            raise ConfigurationError(f"{error}; correct it in .env") from error
        return settings

    @property
    def job_file(self) -> Path:
        """The job file."""
        return self.jobs / self.job

    def array(self) -> ArrayConfig:
        """Return the array that these settings ask for."""
        cap = {} if self.power_cap is None else {"power_cap": f"{self.power_cap:.17g} W"}
        content = {
            "name": ARRAY,
            "engine": "qemu",
            "memory": f"{self.memory:.17g} B",
            "host": {"address": "0.0.0.0", "port": DRIVES_PORT, "metrics_port": PAGE_PORT, "names": [NAME], **cap},
            "devices": [{"profile": self.profile, "count": self.count}],
        }
        return parse_config(content, ArrayConfig, WHERE)
