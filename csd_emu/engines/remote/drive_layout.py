"""Paths on a drive, below the inventory's `folder`; the control script knows the same names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from firmware_agent.common.handover import IDENTITY_FILE, SHARD_FILE

DEFAULT_FOLDER = "/opt/csd-emu"
# The unprivileged user as whom the agent runs.
AGENT_USER = "csd-emu"


@dataclass(frozen=True)
class DriveLayout:
    """The places below `folder` on a drive.

    Attributes:
        folder: the one folder that csd-emu has there.
    """

    folder: PurePosixPath

    @property
    def incoming(self) -> PurePosixPath:
        """Copies that are under way; a cut one goes on where it ended."""
        return self.folder / "incoming"

    @property
    def control(self) -> PurePosixPath:
        """The control script."""
        return self.folder / "bin" / "csd-agent"

    @property
    def enrolment(self) -> PurePosixPath:
        """The drive's own certificate, an identity archive."""
        return self.folder / "enrolment" / IDENTITY_FILE

    @property
    def slot(self) -> PurePosixPath:
        """What an array lends the drive while it is up."""
        return self.folder / "slot"

    @property
    def shard(self) -> PurePosixPath:
        """The drive's records, unless they lie in place."""
        return self.slot / SHARD_FILE

    @property
    def console(self) -> PurePosixPath:
        """What the agent says."""
        return self.slot / "console.log"
