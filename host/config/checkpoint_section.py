"""Section `checkpoint` of a job file: how often a run writes one."""

from __future__ import annotations

from pydantic import Field

from csd_emu.util.config_files import Config


class CheckpointSection(Config):
    """After how many rounds a checkpoint is written; 0 for never."""

    every: int = Field(default=1, ge=0, le=100_000)
