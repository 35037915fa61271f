"""Section `planner` of a job file: the choice of devices."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from csd_emu.util.config_files import Config, Joules, Seconds, Watts
from firmware_agent.common.errors import ConfigurationError
from host.config.preference import parse_preference
from host.config.sync_section import DeviceRef

# So many steps of a trial and more are training, not planning.
MOST_STEPS = 1000


def _preference(text: str) -> str:
    try:
        return parse_preference(text).label
    except ConfigurationError as error:
        raise ValueError(str(error).removeprefix("prefer: ")) from error


def _critical_batch(value: object) -> object:
    """Return what may be a critical batch, so that one rule says what is wrong with anything else."""
    if value in ("measured", None):
        return value
    with suppress(ValueError):
        if 0 < (records := float(str(value))) < math.inf:
            return records
    raise ValueError(f"{value!r} is no number of records; write one more than 0, or measured")


_Records = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class PlannerSection(Config):
    """Which devices train: chosen in the run's first steps, which count (see docs/planner.md).

    Attributes:
        prefer: what is best: ``time``, ``power``, ``energy``, ``edp``, or weights such as ``time=2,energy=1``.
        steps: of each configuration that is tried; 0 decides from the calibration tables alone.
        deadline: the training shall take no longer, in the array's time.
        watts: the array shall draw no more, in the mean.
        joules: the training shall take no more.
        include: nodes that must take part; ``host`` is the host.
        exclude: nodes that must not.
        critical_batch: records of a step beyond which more of them hardly save steps, so that configurations are
            compared by what learning costs; ``measured`` for the gradient noise scale as of each decision, from the
            second one on; without it a record is worth the same whatever the batches.
        unused: whether drives that take no part stay ``powered``, and idle, or are ``off``.
    """

    prefer: Annotated[str, AfterValidator(_preference)] = "edp"
    steps: int = Field(default=5, ge=0, le=MOST_STEPS)
    deadline: Seconds | None = None
    watts: Watts | None = None
    joules: Joules | None = None
    include: list[DeviceRef] = Field(default_factory=list)
    exclude: list[DeviceRef] = Field(default_factory=list)
    critical_batch: Annotated[_Records | Literal["measured"], BeforeValidator(_critical_batch)] | None = None
    # Without quotes YAML 1.1 reads `off` as false.
    unused: Annotated[Literal["powered", "off"], BeforeValidator(lambda value: "off" if value is False else value)] = (
        "powered"
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for name in ("deadline", "watts", "joules"):
            if (most := getattr(self, name)) is not None and most <= 0:
                raise ValueError(f"{name} must be more than 0; leave it out for no limit")
        if both := sorted(set(self.include) & set(self.exclude)):
            raise ValueError(f"{', '.join(both)}: is both in include and in exclude; take it out of one")
        return self
