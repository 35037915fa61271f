"""Section `data` of a job file: the data set, and how its records are divided among the drives."""

from __future__ import annotations

from pydantic import Field

from csd_emu.util.config_files import Config


class Partition(Config):
    """How records are dealt out to the drives: `dirichlet` concentration (non-IID), or evenly at random if null."""

    dirichlet: float | None = Field(default=None, gt=0, le=1e6, allow_inf_nan=False)


class DataSection(Config):
    """Which data set, and how it is dealt out.

    Attributes:
        source: name of the data set, or the path of files (with a / in it), from the job file's folder.
        partition: how the private records are dealt out.
        private: share of the records that are private, each to one drive, which they never leave; the others are public
            and lie on every drive. None: all of them in federated mode, none in synchronous mode.
    """

    source: str
    partition: Partition = Partition()
    private: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)

    def resolved(self, mode: str) -> DataSection:
        """Return the section with the share of private records that a job of this `mode` has."""
        usual = 1.0 if mode == "federated" else 0.0
        return self.model_copy(update={"private": usual if self.private is None else self.private})
