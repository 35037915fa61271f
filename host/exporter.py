"""Prometheus metrics of a run. Counters advance in device time; scrapes come in wall time (see docs/metrics.md)."""

from __future__ import annotations

import threading
from types import TracebackType
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from firmware_agent.errors import EnvironmentUnfit
from host.records import EventRecord, RoundRecord, What


class Exporter:
    """Serves the metrics of one array on loopback; a context manager."""

    def __init__(self, port: int | None) -> None:
        """Prepare to listen on `port`, or on any free one."""
        self.registry = CollectorRegistry()
        self._port = port or 0
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None
        self._up = Gauge("csd_device_up", "1 while the device has a session", ["device"], registry=self.registry)
        self._samples = Counter("csd_train_samples", "Records trained on", ["device"], registry=self.registry)
        self._steps = Counter("csd_train_steps", "Optimiser steps", ["device"], registry=self.registry)
        self._seconds = Counter(
            "csd_device_seconds", "Device time of training, in seconds", ["device", "clock"], registry=self.registry
        )

    def __enter__(self) -> Exporter:
        try:
            self._server, self._thread = start_http_server(self._port, "127.0.0.1", self.registry)
        except OSError as error:
            raise EnvironmentUnfit(
                f"host.metrics_port: cannot listen on 127.0.0.1:{self._port} ({error.strerror}); "
                "free it, or set another"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    @property
    def address(self) -> str:
        """The URL that Prometheus scrapes."""
        port = self._server.server_port if self._server is not None else self._port
        return f"http://127.0.0.1:{port}/metrics"

    def add_event(self, event: EventRecord) -> None:
        """Note what happened to a device."""
        if event.what in (What.JOINED, What.REJOINED, What.LEFT):
            self._up.labels(event.device).set(int(event.what != What.LEFT))

    def add_round(self, record: RoundRecord) -> None:
        """Count what the devices did in a round."""
        for part in record.devices:
            self._samples.labels(part.device).inc(part.samples)
            self._steps.labels(part.device).inc(part.steps)
            self._seconds.labels(part.device, part.clock).inc(part.device_seconds.total)
