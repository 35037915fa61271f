"""The job file's `strategy`: a name alone, or a mapping with the name and the algorithm's own keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from host.config.plugins.kinds import STRATEGY
from host.config.plugins.plugin_section import BuiltInSection, RegisteredSection, UserSection


class BuiltInStrategySection(BuiltInSection):
    """What every built-in strategy takes.

    Attributes:
        update_norm: the largest L2 norm of a drive's update; a larger one is shortened to it. Null: as they come.
    """

    update_norm: float | None = Field(default=None, gt=0)


if TYPE_CHECKING:
    StrategySection = BuiltInStrategySection | UserSection
else:
    StrategySection = Annotated[
        Any, RegisteredSection(STRATEGY, BuiltInStrategySection, "fedavg or {name: fedprox, mu: 0.01}")
    ]
