"""Metrics: what a job may want to know of its model beside the loss, from the outputs on held-out records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from firmware_agent.common.errors import PluginError
from host.config.plugins.kinds import METRIC
from host.config.plugins.plugin_loading import Plugin
from host.config.plugins.plugin_section import MetricSection, UserSection
from host.core.learning.judgement import HeldOutMetric
from host.core.records import RoundRecord
from host.policies.metrics.built_in_metrics import Mean

__all__ = ["make_metrics"]

_TAKEN = {
    *RoundRecord.__struct_fields__,
    "samples",
    "joules",
    "loss",
    "figure",
    "run",
    "gain",
    "metered",
    "sending",
} | {"health"}
_USUAL = {"next_token": "perplexity", "mean_squared_error": "mean_absolute_error"}


def make_metrics(
    sections: list[MetricSection] | None, plugins: Mapping[str, Plugin], loss: str
) -> dict[str, Callable[[], HeldOutMetric]]:
    """Return name -> what makes a metric of a job, for each judgement anew.

    Args:
        sections: of the job file; None for what suits the loss.
        plugins: name -> the user's own.
        loss: name of the job's.

    Raises:
        PluginError: two have one name, or one the name of a figure that every round has.
    """
    if sections is None:
        return {_USUAL[loss]: METRIC.load(_USUAL[loss])} if loss in _USUAL else {}
    made: dict[str, Callable[[], HeldOutMetric]] = {}
    for section in sections:
        name = section.name.rpartition(":")[2]
        if name in made:
            raise PluginError(f"metrics: {name} is named twice; leave one out")
        if name in _TAKEN:
            raise PluginError(f"metrics: {name} is a figure of every round; give the function another name")
        if isinstance(section, UserSection):
            plugin = plugins[section.name]
            made[name] = plugin.make if isinstance(plugin.target, type) else partial(MeanOf, plugin)
        else:
            made[name] = partial(METRIC.load(name), **section.options)
    return made


class MeanOf(Mean):
    """The mean over records of a function of the user's, of outputs and batch, that returns the mean over a batch."""

    def __init__(self, plugin: Plugin) -> None:
        """Begin with nothing."""
        super().__init__()
        self._plugin = plugin

    def update(self, outputs: Any, batch: Mapping[str, Any]) -> None:
        """Take in a batch.

        Raises:
            PluginError: the function returned several values.
        """
        found = self._plugin.target(outputs, batch, **self._plugin.options)
        if getattr(found, "ndim", 0):
            raise PluginError(
                f"metric {self._plugin.name!r}: returned shape {tuple(found.shape)}; return a number, the mean over "
                "the records"
            )
        self.add(float(found), len(next(iter(batch.values()))))
