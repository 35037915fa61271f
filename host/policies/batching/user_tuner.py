"""Wrapper of a user's batch tuner that enforces the `BatchTuner` protocol; a violation is an error that names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from firmware_agent.common.errors import PluginError, PluginFailed, user_errors
from host.config.plugins.plugin_loading import Plugin, check_methods, describe_error
from host.core.tuning.batch_tuner import Batches, Floats, Retune
from host.core.tuning.speed_table import SpeedTable

_METHODS = {
    "probes": 1,
    "observe": 3,
    "leave": 1,
    "join": 1,
    "possible_records_per_second": 0,
    "state": 0,
    "load_state": 1,
}


class UserTuner:
    """A `BatchTuner` around the user's. No batch is more than a device's memory holds, nor all of them 0."""

    def __init__(self, plugin: Plugin, tables: Sequence[SpeedTable], tuner: Any) -> None:
        """Check it.

        Raises:
            PluginError: it is no tuner.
        """
        self._plugin, self._tuner = plugin, tuner
        self._most = np.array([table.largest_batch for table in tables], np.int64)
        self._gone = np.zeros(len(tables), bool)
        check_methods(plugin, tuner, _METHODS, "derive it from csd_emu.extend.FixedBatches")
        try:
            first, _ = self.batches, self.slowdowns
        except PluginFailed as error:
            raise PluginError(str(error)) from error
        if not first.any():
            raise PluginError(f"{plugin}: batches are all 0 at the beginning; nobody would train")

    @property
    def batches(self) -> Batches:
        """(devices,) records per step as of now."""
        return self._batches("batches", self._plugin.guard("batches", lambda: self._tuner.batches))

    @property
    def slowdowns(self) -> Floats:
        """(devices,) observed over expected seconds of the same batch, as believed now."""
        return self._floats("slowdowns", self._plugin.guard("slowdowns", lambda: self._tuner.slowdowns))

    def probes(self, step: int) -> Batches:
        """Return (devices,) records that parked devices compute beside this step (see `BatchTuner.probes`)."""
        return self._batches("probes", self._plugin.guard("probes", lambda: self._tuner.probes(step)))

    def observe(self, step: int, compute_seconds: Floats, steps_left: int | None = None) -> Retune | None:
        """Take what a step cost; return new batches if the user's tuner has some (see `BatchTuner.observe`)."""
        seconds = np.array(compute_seconds, np.float64)
        retune = self._plugin.guard("observe", lambda: self._tuner.observe(step, seconds, steps_left))
        if retune is None:
            return None
        checked = self._retune("observe", retune)
        if not checked.batches[~self._gone].any() and not self._gone.all():
            raise self._plugin.failed("observe gave every device a batch of 0; nobody would train")
        return checked

    def leave(self, device: int) -> Retune:
        """Note that a device is gone."""
        self._gone[device] = True
        return self._retune("leave", self._plugin.guard("leave", lambda: self._tuner.leave(device)))

    def join(self, device: int) -> Retune:
        """Note that a device is back."""
        self._gone[device] = False
        return self._retune("join", self._plugin.guard("join", lambda: self._tuner.join(device)))

    def possible_records_per_second(self) -> float:
        """Return what the user's tuner holds for possible."""
        value = self._plugin.guard("possible_records_per_second", self._tuner.possible_records_per_second)
        return float(self._array("possible_records_per_second", value, "iuf", ()))

    def state(self) -> dict[str, Any]:
        """Return what the user's tuner keeps, and who is gone.

        Raises:
            PluginFailed: the user's code raised, or JSON cannot hold it.
        """
        state = self._plugin.guard("state", self._tuner.state)
        try:
            held = msgspec.json.decode(msgspec.json.encode(state))
        except user_errors() as error:
            raise self._plugin.failed(f"state must return what JSON can hold ({error})") from error
        return {"user": held, "gone": self._gone.tolist()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned.

        Raises:
            CheckpointError: the user's code does not take it.
        """
        self._gone = np.array(state["gone"], bool)
        self._plugin.guard_load(lambda: self._tuner.load_state(state["user"]))

    def _retune(self, what: str, retune: object) -> Retune:
        if not isinstance(retune, Retune):
            raise self._plugin.failed(f"{what} returned {type(retune).__name__}, not a csd_emu.extend.Retune")
        batches = self._batches(what, retune.batches)
        if (batches != self.batches).any():
            raise self._plugin.failed(
                f"{what} returned the batches {batches.tolist()}, and its own batches are "
                f"{self.batches.tolist()}; what it returns must be in force already"
            )
        return replace(retune, batches=batches, slowdowns=self._floats(what, retune.slowdowns))

    def _batches(self, what: str, value: object) -> Batches:
        batches: Batches = self._array(what, value, "iu", self._most.shape).astype(np.int64)
        if (wrong := np.flatnonzero((batches < 0) | (batches > self._most))).size:
            raise self._plugin.failed(
                f"{what} has a batch of {batches[wrong[0]]} for device {wrong[0]}, which takes 0 to "
                f"{self._most[wrong[0]]}"
            )
        return batches

    def _floats(self, what: str, value: object) -> Floats:
        floats: Floats = self._array(what, value, "iuf", self._most.shape).astype(np.float64)
        if not np.isfinite(floats[~self._gone]).all():  # of a device that is gone nothing is known
            raise self._plugin.failed(f"{what} must be finite numbers, not {floats.tolist()}")
        return floats

    def _array(self, what: str, value: object, kinds: str, shape: tuple[int, ...]) -> Any:
        try:
            array = np.asarray(value)
        except user_errors() as error:  # a ragged list, a tensor that requires its gradient
            raise self._plugin.failed(f"{what} is no array of numbers: {describe_error(error)}") from error
        if array.shape != shape or array.dtype.kind not in kinds:
            expected = "a number" if shape == () else f"{shape[0]} {'whole ' * (kinds == 'iu')}numbers, one per device"
            raise self._plugin.failed(f"{what} must be {expected}, not {value!r}")
        return array
