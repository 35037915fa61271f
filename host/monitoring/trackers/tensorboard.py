"""TensorBoard: event files in the run directory's folder ``tensorboard``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from host.config.plugins.kinds import TRACKER
from host.monitoring.trackers.tracker import TrackedRun

if TYPE_CHECKING:
    from torch.utils.tensorboard import FileWriter


@TRACKER.register("tensorboard", "Event files for TensorBoard, in the run directory; needs csd-emu[tensorboard].")
class TensorBoardTracker:
    """Writes scalars, and the parameters as text."""

    packages = ("tensorboard",)

    _writer: FileWriter

    def begin(self, run: TrackedRun) -> None:
        """Open the event file."""
        from torch.utils.tensorboard import FileWriter, summary

        self._writer = FileWriter(str(run.directory / "tensorboard"))
        rows = [("key", "value"), ("---", "---"), *run.tags.items(), *run.parameters.items()]
        self._writer.add_summary(
            summary.text("run", "\n".join(f"| {key} | {value} |" for key, value in rows))  # type: ignore[no-untyped-call]
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write scalars, as one event: each of its own would take three times as long."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._writer.add_summary(
            Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()]), step
        )

    def finish(self, files: list[Path]) -> None:
        """Close the event file; a report is no artifact of TensorBoard's."""
        self._writer.close()
