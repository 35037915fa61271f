"""Choice of the devices that take part in a round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import BeforeValidator, Field

from csd_emu.util.config_files import Config, ShortForm

# Sets this draw apart from others of the same seed.
_STREAM = 0x9A27


class ParticipationSection(Config):
    """How many devices are chosen for a round: a `share` of all, at least one, or a `count`."""

    share: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    count: int | None = Field(default=None, ge=1)

    def rules(self) -> Mapping[str, object]:
        """Return the rule that it is either."""
        one_of_both = (self.share is None) != (self.count is None)
        return {"must have either a share or a count, for example 0.5 or {count: 2}": not one_of_both}

    def participants(self, devices: int) -> int:
        """Return how many of that many devices take part: a share is rounded up, a count bounded by what there is."""
        if self.count is not None:
            return min(self.count, devices)
        # Without the margin 0.1 of 30 would be 4: 3.0000000000000004.
        return max(1, math.ceil((self.share or 1.0) * devices - 1e-9))


def _expand(value: object) -> object:
    """Return the mapping that a number alone stands for."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value > 1:
            raise ValueError(f"a number alone is a share, at most 1; for a count write {{count: {value}}}")
        return {"share": float(value)}
    return value


_ALONE = ShortForm(lambda: {"type": "number", "exclusiveMinimum": 0, "maximum": 1})
Participation = Annotated[ParticipationSection, BeforeValidator(_expand), _ALONE]


@dataclass(frozen=True)
class RoundSelection:
    """Who takes part in a round.

    Attributes:
        chosen: in the array's order.
        reserves: all others, in the order in which they stand in if none of the chosen can be had.
    """

    chosen: tuple[str, ...]
    reserves: tuple[str, ...]


def choose_devices(
    devices: Sequence[str], section: ParticipationSection, seed: int, round_number: int
) -> RoundSelection:
    """Draw who takes part in a round: uniformly, without replacement, by `seed` and `round_number` alone.

    So a resumed run repeats the draw, and it does not depend on who is there: a chosen device that is gone is lost in
    this round.

    Args:
        devices: all devices of the array, in order.
        section: how many take part.
        seed: of the job.
        round_number: from 1.
    """
    count = section.participants(len(devices))
    order = np.random.default_rng([seed, round_number, _STREAM]).permutation(len(devices))
    return RoundSelection(
        tuple(devices[index] for index in sorted(order[:count])), tuple(devices[index] for index in order[count:])
    )
