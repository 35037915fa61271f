"""Seconds of each layer in a step, at any batch size. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from csd_emu.profiles.calibration.table_fit import predict


def layers_at(points: Sequence[tuple[int, Sequence[float]]], batch_size: int, whole_seconds: float) -> list[float]:
    """Return the seconds of each layer at `batch_size`; they add up to `whole_seconds`.

    Each layer follows its own points as a step does its own (`csd_emu.profiles.calibration.table_fit.predict`), and all
    are scaled. With one point the layers have the same shares of any batch. If none takes any time, all take as long.

    Args:
        points: (batch size, (layers,) seconds >= 0), at least one, batch sizes strictly increasing.
        batch_size: at least 1.
        whole_seconds: of all layers, at this batch size.
    """
    batches = [batch for batch, _ in points]
    columns = list(zip(*(seconds for _, seconds in points), strict=True))
    weights = [
        column[0] if len(points) == 1 else predict(list(zip(batches, column, strict=True)), batch_size)
        for column in columns
    ]
    total = sum(weights)
    if total <= 0:
        return [whole_seconds / len(weights)] * len(weights)
    return [whole_seconds * weight / total for weight in weights]
