"""Check of records that lie in a drive in place, for a job to train on them."""

from __future__ import annotations

from dataclasses import dataclass

from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.frames.session_frames import Holding
from host.core.datasets import Dataset


@dataclass(frozen=True)
class WantedRecords:
    """What the job's own data set, on which the host evaluates, is like.

    Attributes:
        shape: (channels, height, width) of an image.
        dtype: of its values, NumPy's name.
        classes: how many there are.
    """

    shape: tuple[int, ...]
    dtype: str
    classes: int

    @classmethod
    def of(cls, dataset: Dataset) -> WantedRecords:
        """Return what fits to `dataset`."""
        return cls(dataset.images.shape[1:], dataset.images.dtype.str, dataset.classes)

    def check(self, device: str, holding: Holding | None) -> None:
        """Return if what a drive tells of its records fits.

        Raises:
            ProtocolError: it does not; the message says what both are like.
        """
        if holding is None:
            raise ProtocolError(f"{device} was to train on records in place and has a shard; upgrade its agent")
        if holding.shape != self.shape or holding.dtype != self.dtype:
            raise ProtocolError(
                f"{device} holds images of {_text(holding.shape)} ({holding.dtype}), the job's are {_text(self.shape)} "
                f"({self.dtype}); convert the ones, or set data.source to a sample of the others"
            )
        if holding.classes > self.classes:
            raise ProtocolError(
                f"{device} holds {holding.classes} classes, the job's data have {self.classes}; correct the labels, or "
                "set data.source to data with all classes"
            )


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
