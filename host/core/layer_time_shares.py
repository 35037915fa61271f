"""Shares of a device's seconds of a step by the model's layers: as measured, else by arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from csd_emu.profiles.calibration import CalibrationTable
from firmware_agent.common.layer_costs import LayerWork
from host.core.evaluation import Evaluator


@dataclass(frozen=True)
class Shares:
    """What each layer has of a step.

    Attributes:
        weights: (forward, backward) seconds of each layer at some speed, in forward order; None goes by arithmetic.
        clock: that they were measured by; empty without any.
        reason: why they go by arithmetic; empty if they do not.
    """

    weights: tuple[tuple[float, ...], tuple[float, ...]] | None
    clock: str = ""
    reason: str = ""

    def weigh(self, works: Sequence[LayerWork]) -> tuple[LayerWork, ...]:
        """Return layers of which the operations are in the proportions that were measured; as they are if none were.

        Args:
            works: the model's layers, in forward order.
        """
        if self.weights is None:
            return tuple(works)
        return tuple(
            replace(work, forward_operations=forward, backward_operations=backward)
            for work, forward, backward in zip(works, *self.weights, strict=True)
        )


BY_ARITHMETIC = Shares(None)
"""Nothing was measured."""


def table_shares(table: CalibrationTable, batch_size: int, names: Sequence[str]) -> Shares:
    """Return what a table's layers have of a step at `batch_size`.

    Args:
        table: of the model.
        batch_size: at least 1.
        names: of the model's layers as they are known here, in forward order.

    Raises:
        CalibrationError: `batch_size` is below 1.
    """
    layers = table.layer_seconds(batch_size)
    if layers is None:
        return Shares(None, reason="the calibration table has no layers; measure them with csd-emu calibrate")
    if [layer.name for layer in layers] != list(names):
        return Shares(None, reason="the calibration table's layers are not those that this machine's torch finds")
    forward = tuple(layer.forward_seconds for layer in layers)
    return Shares((forward, tuple(layer.backward_seconds for layer in layers)), table.clock)


def step_shares(table: CalibrationTable | None, batch_size: int, evaluator: Evaluator) -> Shares:
    """Return what each layer has of a job's steps, whatever a tuner makes of their batches later.

    Args:
        table: of the model; None if there is none.
        batch_size: that the job has.
        evaluator: has the model.
    """
    if table is None or table.layer_seconds(batch_size) is None:
        return BY_ARITHMETIC
    return table_shares(table, batch_size, [layer.name for layer in evaluator.layers()])
