"""Racks and outages of a servers file, for simulations alone: where servers stand, and how often what fails."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from csd_emu.util.config_files import Config, Seconds


class RacksSection(Config):
    """Where servers stand.

    Attributes:
        servers: of each rack, in the order of the file.
        oversubscription: bandwidth of a full rack's links over that of its uplink; 1 never blocks.
        allreduce: how servers add up: a ``ring`` whose ranks follow the racks, one whose neighbours are ``scattered``
            over them, or ``hierarchical``, inside racks first (see `csd_emu.perfmodel.allreduce`).
    """

    servers: int = Field(ge=1)
    oversubscription: float = Field(default=1.0, ge=1, allow_inf_nan=False)
    allreduce: Literal["ring", "scattered", "hierarchical"] = "ring"


class FailuresSection(Config):
    """What fails, in the array's time. What has no mean time between failures never does.

    Attributes:
        server_mtbf: mean time between failures of one server.
        server_repair: until it is back; null: never.
        drive_mtbf: mean time between failures of one drive.
        drive_repair: until it is back; null: never.
        rendezvous: until servers train on after one was lost or came back.
    """

    server_mtbf: Seconds | None = None
    server_repair: Seconds | None = None
    drive_mtbf: Seconds | None = None
    drive_repair: Seconds | None = None
    rendezvous: Seconds = Field(default="20 s")  # type: ignore[assignment]

    @model_validator(mode="after")
    def _positive(self) -> Self:
        for name in ("server_mtbf", "drive_mtbf"):
            if getattr(self, name) == 0:
                raise ValueError(f"failures.{name} must be more than 0 s; leave it out for none")
        return self
