"""The agent's way in: how it ends when it is told to."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from firmware_agent import drive
from firmware_agent.__main__ import main


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.slow
def test_an_agent_that_is_told_twice_to_stop_still_cleans_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done: list[str] = []

    def serve(folder: Path, stop: threading.Event) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            done.append("went on")
        finally:
            signal.raise_signal(signal.SIGINT)
            done.append(f"cleaned up {folder.name}, told to stop: {stop.is_set()}")

    monkeypatch.setattr(drive, "serve_folder", serve)
    monkeypatch.setattr(sys, "argv", ["firmware_agent", "native", str(tmp_path / "csd-00")])
    assert main() == 0
    assert done == ["cleaned up csd-00, told to stop: True"]
