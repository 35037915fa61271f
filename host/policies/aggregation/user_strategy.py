"""Wrapper of a user's strategy that enforces the `Strategy` protocol; each violation is one error that names it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from firmware_agent.common.errors import PluginError, user_errors
from firmware_agent.common.slices import Array
from host.config.plugins.plugin_loading import Plugin, check_methods, describe_error
from host.policies.aggregation.strategy import OPTIONAL_METHODS, Contribution, FirstRound

_METHODS = {"aggregate": 2, "state": 0, "load_state": 1}


class UserStrategy:
    """A `Strategy` around the user's. It is given arrays that cannot be written to, which stay as they are for good."""

    def __init__(self, plugin: Plugin, momentum: float, parameters: Collection[str]) -> None:
        """Make it (see `host.policies.aggregation.make_strategy`).

        Raises:
            PluginError: it cannot be made, or is no strategy.
        """
        self._plugin = plugin
        self.least_contributions = 1
        self._strategy = plugin.make(momentum=momentum, parameters=frozenset(parameters))
        check_methods(plugin, self._strategy, _METHODS, "derive it from csd_emu.extend.Stateless")
        self.proximal = _read_proximal(plugin, self._strategy)
        for name, count in OPTIONAL_METHODS.items():
            if hasattr(self._strategy, name):
                check_methods(plugin, self._strategy, {name: count}, "correct its arguments")
                setattr(self, name, self._first_weights if name == "first_weights" else partial(self._guarded, name))

    @property
    def client(self) -> str | None:
        """The client program that it needs; None if any will do."""
        return getattr(self._strategy, "client", None)

    def _guarded(self, name: str, *arguments: Any) -> Any:
        given = [_read_only(each) if name == "evaluate" and isinstance(each, Mapping) else each for each in arguments]
        found = self._plugin.guard(name, lambda: getattr(self._strategy, name)(*given))
        if name == "round_seconds" and not (isinstance(found, int | float) and 0 <= found < np.inf):
            raise self._plugin.failed(f"round_seconds returned {found!r}; return seconds, 0 or more")
        return found

    def aggregate(self, global_weights: Mapping[str, Array], contributions: Sequence[Contribution]) -> dict[str, Array]:
        """Return the new weights, in the order and with the types of the global ones (see `Strategy.aggregate`).

        Floating-point results are rounded to the weights' type.

        Raises:
            PluginFailed: the user's code raised, or returned something else than new weights.
        """
        parts = [
            replace(part, weights=_read_only(part.weights), tensors=_read_only(part.tensors)) for part in contributions
        ]
        weights = _read_only(global_weights)
        return self._weights("aggregate", lambda: self._strategy.aggregate(weights, parts), global_weights)

    def _first_weights(self, start: FirstRound) -> dict[str, Array]:
        return self._weights(
            "first_weights",
            lambda: self._strategy.first_weights(replace(start, weights=_read_only(start.weights))),
            start.weights,
        )

    def _weights(self, what: str, call: Callable[[], object], before: Mapping[str, Array]) -> dict[str, Array]:
        after = self._plugin.guard(what, call)
        if not isinstance(after, Mapping) or set(after) != set(before):
            raise self._plugin.failed(f"{what} must return {_names(before)}, not {_names(after)}")
        checked: dict[str, Array] = self._plugin.guard(
            what, lambda: {name: self._like(what, name, after[name], old) for name, old in before.items()}
        )
        return checked

    def state(self) -> dict[str, Array]:
        """Return what the user's strategy keeps.

        Raises:
            PluginFailed: the user's code raised, or it is not a mapping of names to arrays of numbers.
        """
        state = self._plugin.guard("state", self._strategy.state)
        arrays: dict[str, Array] | None = None
        if isinstance(state, Mapping):
            arrays = self._plugin.guard("state", lambda: {name: np.array(value) for name, value in state.items()})
        if arrays is None or any(not isinstance(n, str) or a.dtype.kind not in "biuf" for n, a in arrays.items()):
            raise self._plugin.failed("state must return a mapping of names to arrays of numbers")
        return arrays

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go on from what `state` returned.

        Raises:
            CheckpointError: the user's code does not take it.
        """
        self._plugin.guard_load(lambda: self._strategy.load_state(dict(state)))

    def _like(self, what: str, name: str, after: object, before: Array) -> Array:
        array = np.asarray(after)  # may raise: a ragged list, a tensor that requires its gradient
        if array.shape != before.shape or array.dtype.kind not in "biuf":
            raise self._plugin.failed(
                f"{what} returned {name} with shape {array.shape} and type {array.dtype}, the "
                f"weights have {before.shape} and {before.dtype}"
            )
        if before.dtype.kind in "iu" and array.dtype.kind == "f":
            array = np.asarray(np.rint(array))
        with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is seen below
            cast = np.asarray(array, before.dtype)
        if not np.isfinite(array).all() or not np.isfinite(cast).all():
            raise self._plugin.failed(
                f"{what} returned {name} with values that are no finite {before.dtype}; check for "
                "divisions by 0 and for learning rates that are too high"
            )
        return cast


def _read_proximal(plugin: Plugin, strategy: object) -> float:
    try:
        value = getattr(strategy, "proximal", 0.0)
    except user_errors() as error:
        raise PluginError(f"{plugin}: proximal failed: {describe_error(error)}") from error
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < np.inf:
        raise PluginError(f"{plugin}: proximal must be a number, 0 or more, not {value!r}")
    return float(value)


def _read_only(weights: Mapping[str, Array]) -> dict[str, Array]:
    views = {name: array.view() for name, array in weights.items()}
    for view in views.values():
        view.flags.writeable = False
    return views


def _names(weights: object) -> str:
    if not isinstance(weights, Mapping):
        return type(weights).__name__
    names = list(map(str, weights))
    return f"the tensors {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}" if names else "no tensors"
