"""TensorBoard: event files in the run directory's folder ``tensorboard``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from host.config.plugins.kinds import TRACKER
from host.monitoring.trackers.tracker import TrackedRun

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


@TRACKER.register("tensorboard", "Event files for TensorBoard, in the run directory; needs csd-emu[tensorboard].")
class TensorBoardTracker:
    """Writes scalars, and the parameters as text."""

    packages = ("tensorboard",)

    _writer: SummaryWriter | None = None

    def begin(self, run: TrackedRun) -> None:
        """Open the event file."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.directory / "tensorboard"))
        rows = "\n".join(f"| {key} | {value} |" for key, value in {**run.tags, **run.parameters}.items())
        self._writer.add_text("run", f"| key | value |\n| --- | --- |\n{rows}")

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write scalars."""
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def finish(self, files: list[Path]) -> None:
        """Close the event file; a report is no artifact of TensorBoard's."""
        if self._writer is not None:
            self._writer.close()
