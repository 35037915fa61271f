"""A run that never was, served by the real server: what the live page shows of it, and then something happens."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from host.core.records import EventKind, EventRecord, RoundRecord
from host.monitoring.exporter import Exporter
from host.monitoring.metrics.metrics_state import MetricsState
from host.monitoring.page.page_app import PageApp
from host.monitoring.page.run_history import History
from host.monitoring.run_facts import RunFacts
from host.monitoring.run_listener import show_round
from tests.support.metrics import starting


class LiveRun:
    """A run whose drives have joined and that has begun to train; a context manager that serves it."""

    def __init__(
        self, devices: Sequence[str], mode: str = "federated", array: str = "lab", model: str = "digits_cnn"
    ) -> None:
        facts = RunFacts(array, "qemu", model, mode, tuple(devices), rounds=12, target_accuracy=0.95)
        self.metrics, self.history = MetricsState(facts), History(facts)
        self.page = PageApp(self.history, self.metrics.devices)
        self._devices, self._exporter = devices, Exporter(self.metrics, None, page=self.page)

    def __enter__(self) -> LiveRun:
        self._exporter.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exporter.__exit__(kind, error, trace)

    @property
    def address(self) -> str:
        """Where the page is."""
        return self._exporter.page_address

    def begin(self, clock: str = "counted") -> None:
        """Let all drives join, and training begin."""
        for device in self._devices:
            self.tell(device, EventKind.JOINED)
        for listener in (self.metrics, self.history):
            listener.begin(starting(self._devices, clock))

    def tell(self, device: str, what: EventKind, detail: str = "") -> None:
        """Let an event happen."""
        for follower in (self.metrics, self.history):
            follower.add_event(EventRecord(device, what, detail, 12.0, 3.0))

    def add(self, *records: RoundRecord) -> None:
        """Let rounds end."""
        for record in records:
            show_round((self.metrics, self.history), record)

    def lose(self, device: str) -> None:
        """Lose a drive."""
        self.tell(device, EventKind.LEFT)
        self.tell(device, EventKind.LOST, "in round 3: the device closed the stream")
