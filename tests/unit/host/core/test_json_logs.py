"""The log as JSON lines."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core import console as logs
from host.core.records import EventKind, EventRecord
from host.monitoring.run_log import RunLog
from tests.support.records import device_round, round_record

KEYS = {"time", "level", "logger", "run", "drive", "round", "message"}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What is written to standard error in the format."""
    stream, console = io.StringIO(), Console()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    root, levels = logging.getLogger(), {name: logging.getLogger(name).level for name in logs._OURS}
    before = list(root.handlers)
    logs.log_as_json(console)
    try:
        stream.console = console  # type: ignore[attr-defined]
        yield stream
    finally:
        logging.captureWarnings(False)
        root.handlers[:] = before
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        logs.tell(run=None, round=None)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_events_and_rounds_of_a_run_name_run_drive_and_round(written: io.StringIO) -> None:
    follower = RunLog()
    logs.tell(run="lab-1")
    follower.add_event(EventRecord("csd-01", EventKind.LOST, "its session ended"))
    follower.add_round(round_record([device_round("csd-00", 10, PhaseSeconds(forward=1.0))], round=1))
    follower.add_event(EventRecord("csd-01", EventKind.JOINED))
    logging.getLogger("host.fleet.fleet").warning("refused: %s", "no such drive")
    lost, ended, joined, refused = lines(written)
    assert {"run": "lab-1", "drive": "csd-01", "round": None, "event": "lost"}.items() <= lost.items()
    assert lost["message"] == "its session ended"
    assert (ended["round"], ended["drive"]) == (1, None)
    assert {"drive": "csd-01", "round": 1, "event": "joined"}.items() <= joined.items()
    assert {"run": "lab-1", "round": 1, "level": "warning", "logger": "host.fleet.fleet"}.items() <= refused.items()
    assert all(line.keys() - {"event"} == KEYS for line in lines(written))


def test_rounds_before_a_resume_are_not_logged_again(written: io.StringIO) -> None:
    follower = RunLog(last_round=2)
    for number in (1, 2, 3):
        follower.add_round(round_record([device_round("csd-00", 10, PhaseSeconds(forward=1.0))], round=number))
    assert [line["round"] for line in lines(written)] == [3]


@given(st.text())
def test_whatever_is_in_a_message_it_is_one_line_without_control_characters(text: str) -> None:
    record = logging.LogRecord("host", logging.INFO, __file__, 1, "%s", (text,), None)
    line = logs.JsonLines().format(record)
    assert line.isprintable()
    assert json.loads(line)["message"] == text


def test_what_is_said_to_people_is_logged_and_an_error_is_one(written: io.StringIO) -> None:
    console: Console = written.console  # type: ignore[attr-defined]
    console.print("[green]✓[/] start 2 drives [dim](1.0 s)[/]")
    console.print("csd-emu: no such array; csd-emu status lists them", style="red", markup=False)
    said, failed = lines(written)
    assert (said["level"], said["message"]) == ("info", "✓ start 2 drives (1.0 s)")
    assert (failed["level"], failed["message"][:9]) == ("error", "csd-emu: ")


def test_a_traceback_is_part_of_its_line(written: io.StringIO) -> None:
    try:
        raise ValueError("a\nb")
    except ValueError:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    (line,) = lines(written)
    assert line["level"] == "critical"
    assert "test_json_logs.py" in line["traceback"]
    assert line["traceback"].endswith("ValueError: a\nb\n")
