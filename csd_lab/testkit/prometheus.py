"""A Prometheus of our own for the time of a measurement, and what it answers."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import EnvironmentUnfit

PROGRAM = "prometheus"
LOOPBACK = "127.0.0.1"
_START_SECONDS, _STOP_SECONDS, _ANSWER_SECONDS, _POLL_SECONDS = 60.0, 10.0, 30.0, 0.1

Labels = frozenset[tuple[str, str]]


class Prometheus:
    """A running server; ask it in PromQL. Moments are Unix seconds."""

    def __init__(self, port: int) -> None:
        """Take the loopback port on which it listens."""
        self._base = f"http://{LOOPBACK}:{port}"

    def value(self, expression: str, at_seconds: float, label: str) -> dict[str, float]:
        """Return the value of each series at a moment, by one of its labels (empty for one without)."""
        result = self._query(expression, at_seconds)
        return {entry["metric"].get(label, ""): float(entry["value"][1]) for entry in result}

    def answer(self, expression: str, at_seconds: float | None = None) -> list[tuple[dict[str, str], float]]:
        """Return labels and value of each series at a moment, or now."""
        result = self._query(expression, time.time() if at_seconds is None else at_seconds)
        return [(entry["metric"], float(entry["value"][1])) for entry in result]

    def samples(self, selector: str, window: str, at_seconds: float) -> list[tuple[float, float]]:
        """Return moments and values that one series had in a window that ends at a moment; empty if there is none."""
        result = self._query(f"{selector}[{window}]", at_seconds)
        return [(float(when), float(value)) for entry in result[:1] for when, value in entry["values"]]

    def is_ready(self) -> bool:
        """Whether it answers."""
        return fetch(f"{self._base}/-/ready") is not None

    def _query(self, expression: str, at_seconds: float) -> list[Any]:
        parameters = urllib.parse.urlencode({"query": expression, "time": repr(at_seconds)})
        try:
            with urllib.request.urlopen(f"{self._base}/api/v1/query?{parameters}", timeout=_ANSWER_SECONDS) as answer:
                result: list[Any] = json.load(answer)["data"]["result"]
        except (OSError, HTTPException) as error:
            raise EnvironmentUnfit(f"Prometheus did not answer {expression!r}: {error}; run it again") from error
        return result


@contextlib.contextmanager
def run_prometheus(folder: Path, target_port: int, interval: str = "1s") -> Iterator[Prometheus]:
    """Have a Prometheus scrape a port of this machine inside the block; its data go into `folder`.

    Raises:
        EnvironmentUnfit: it is not installed, or does not start.
    """
    config = folder / "prometheus.yml"
    config.write_text(
        f"global: {{scrape_interval: {interval}, scrape_timeout: {interval}}}\n"
        f"scrape_configs: [{{job_name: csd-emu, static_configs: [{{targets: ['{LOOPBACK}:{target_port}']}}]}}]\n",
        encoding="utf-8",
    )
    with serve_prometheus(config) as server:
        yield server


@contextlib.contextmanager
def serve_prometheus(config: Path) -> Iterator[Prometheus]:
    """Have a Prometheus of this configuration inside the block; its data go beside the file.

    Raises:
        EnvironmentUnfit: it is not installed, or does not start.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        raise EnvironmentUnfit("Prometheus is not installed; sudo apt-get install prometheus, or make setup-dev")
    folder, port = config.parent, free_port()
    arguments = [
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={LOOPBACK}:{port}",
    ]
    with open(folder / "prometheus.log", "wb") as log:
        process = subprocess.Popen([program, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        server = Prometheus(port)
        _wait_until_ready(server, process, folder / "prometheus.log")
        yield server
    finally:
        end_process(process)


def fetch(url: str) -> bytes | None:
    """Return what a URL answers, or None while it does not."""
    with contextlib.suppress(OSError, HTTPException), urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as answer:
        content: bytes = answer.read()
        return content
    return None


def free_port() -> int:
    """Return a TCP port of loopback that is free now."""
    with socket.create_server((LOOPBACK, 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _wait_until_ready(server: Prometheus, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline, pause = Deadline(_START_SECONDS), threading.Event()
    while not server.is_ready():
        if process.poll() is not None or deadline.expired:
            last = log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
            raise EnvironmentUnfit(f"Prometheus did not start: {last}; prometheus --version should work")
        pause.wait(_POLL_SECONDS)


def end_process(process: subprocess.Popen[bytes], seconds: float = _STOP_SECONDS) -> None:
    """Have a process end, by force if it does not when it is asked to."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
