"""Built-in collate functions.

Torch is imported when one is used: whoever only reads a job has no need of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firmware_agent.common.datafiles.record_set import LENGTH, target_of
from firmware_agent.common.errors import ModelError
from firmware_agent.common.shipped_code import BuiltIns

COLLATES = BuiltIns()


@COLLATES.register("pad", "Ragged fields as long as the longest record of the batch.")
class Pad:
    """Cuts a batch to its longest record, and fills up the others."""

    def __init__(self, fill: float = 0.0, target_fill: int = -100) -> None:
        """Make it.

        Args:
            fill: what stands behind a record's own values.
            target_fill: the same in whole numbers that are to be predicted, which become int64; cross_entropy leaves
                -100 out.
        """
        self._fill, self._target_fill = fill, target_fill

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch; fields that are not ragged stay as they are.

        Raises:
            ModelError: a ragged field has a type that does not hold `fill`.
        """
        import torch

        padded = dict(batch)
        for name in [name for name in batch if name + LENGTH in batch]:
            values, ones = batch[name][:, : max(1, int(batch[name + LENGTH].max()))], [1] * (batch[name].ndim - 2)
            behind = torch.arange(values.shape[1]).reshape(-1, *ones) >= batch[name + LENGTH].reshape(-1, 1, *ones)
            predicted = name == target_of(batch) and not values.is_floating_point()
            held = torch.tensor(self._fill, dtype=torch.float64).to(values.dtype)
            if not predicted and not values.is_floating_point() and held != self._fill:
                raise ModelError(
                    f"collate pad: fill: {self._fill:g} cannot stand in the field {name}, whose values are "
                    f"{values.numpy().dtype}; choose another, or store the field as float32"
                )
            padded[name] = (
                values.long().masked_fill(behind, self._target_fill)
                if predicted
                else values.masked_fill(behind, self._fill)
            )
        return padded
