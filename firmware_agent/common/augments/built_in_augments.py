"""Built-in augmentations, of images and of what lies over them, such as masks.

Torch is imported when one is used: whoever only reads a job has no need of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firmware_agent.common.errors import ModelError
from firmware_agent.common.shipped_code import BuiltIns

AUGMENTS = BuiltIns()


@AUGMENTS.register("flip", "Each image, by chance, from left to right or as it is.")
class HorizontalFlip:
    """Mirrors images."""

    def __call__(self, batch: Mapping[str, Any], generator: Any) -> dict[str, Any]:
        """Return the batch with some of its images, and their masks, mirrored."""
        import torch

        planes, chosen = _planes(batch), torch.rand(len(next(iter(batch.values()))), generator=generator) < 0.5
        return {
            name: values.flip(-1).where(chosen.reshape(-1, *[1] * (values.ndim - 1)), values)
            if name in planes
            else values
            for name, values in batch.items()
        }


@AUGMENTS.register("crop", "A stretch at random, of the image's own size, of each image with a margin of zeros.")
class RandomCrop:
    """Moves images."""

    def __init__(self, padding: int = 4) -> None:
        """Make it.

        Args:
            padding: pixels of the margin: an image moves by so many at most, each way.
        """
        self._padding = padding

    def __call__(self, batch: Mapping[str, Any], generator: Any) -> dict[str, Any]:
        """Return the batch with each image, and its mask, moved by itself; what comes in is 0."""
        import torch

        planes, most = _planes(batch), 2 * self._padding + 1
        moves = torch.randint(0, most, (len(next(iter(batch.values()))), 2), generator=generator).tolist()
        wide = {name: torch.nn.functional.pad(batch[name], [self._padding] * 4) for name in planes}
        return {
            name: torch.stack(
                [
                    record[..., top : top + values.shape[-2], left : left + values.shape[-1]]
                    for record, (top, left) in zip(wide[name], moves, strict=True)
                ]
            )
            if name in planes
            else values
            for name, values in batch.items()
        }


def _planes(batch: Mapping[str, Any]) -> set[str]:
    """Return the fields that are images, (records, channels, height, width), or lie over them, as masks do.

    Raises:
        ModelError: none is.
    """
    sizes = {values.shape[-2:] for values in batch.values() if values.ndim == 4}
    if not sizes:
        raise ModelError(
            f"augment: flip and crop are of images, (channels, height, width), and records have {', '.join(batch)}; "
            "leave them out"
        )
    return {name for name, values in batch.items() if values.ndim > 2 and values.shape[-2:] in sizes}
