"""Schedules of the learning rate: a factor for each round, or each step of a synchronous job, by its number alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from firmware_agent.common.errors import PluginError, PluginFailed
from host.config.plugins.kinds import SCHEDULE
from host.config.plugins.plugin_loading import Plugin
from host.config.plugins.plugin_section import ScheduleSection

# So many rounds or steps are tried before a run, evenly, the last among them.
MOST_TRIED = 10_000


@dataclass(frozen=True)
class Schedule:
    """A job's schedule.

    Attributes:
        call: returns the factor of a round or step, counted from 0, among so many.
        steps: how many there are; later ones, where a run turns out longer, have the factor of the last.
        plugin: the user's own; None of a built-in one.
    """

    call: Callable[[int, int], Any]
    steps: int
    plugin: Plugin | None = None

    def factor(self, number: int) -> float:
        """Return what the learning rate of round or step `number`, from 1 on, is multiplied by.

        Raises:
            PluginFailed: the user's function raised, or returned no finite number of 0 or more.
        """
        step = min(number, self.steps) - 1
        where = f"step {step} of {self.steps} (the first is 0)"
        if self.plugin is None:
            return float(self.call(step, self.steps))
        found = self.plugin.guard(where, lambda: self.call(step, self.steps))
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < math.inf:
            raise self.plugin.failed(f"{where}: returned {found!r}; return a finite factor of 0 or more")
        return float(found)


def make_schedule(section: ScheduleSection | None, plugin: Plugin | None, steps: int) -> Schedule | None:
    """Return the schedule of a run with so many rounds or steps, tried; None if the learning rate stays.

    Raises:
        PluginError: it fails at a round or step, or cannot be made.
    """
    if section is None:
        return None
    if plugin is None:
        call = SCHEDULE.load(section.name)(**section.options)
    else:
        call = plugin.make() if isinstance(plugin.target, type) else partial(plugin.target, **plugin.options)
    made = Schedule(call, max(1, steps), plugin)
    tried = min(made.steps, MOST_TRIED)
    try:
        for place in range(tried):
            made.factor(1 + place * (made.steps - 1) // max(1, tried - 1))
    except PluginFailed as error:
        raise PluginError(str(error)) from error
    return made
