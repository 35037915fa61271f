"""The agent's reading of the files that the root helper of a real drive writes."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from firmware_agent.common.health.drive_health import IoCounters
from firmware_agent.common.health.health_log import MAX_LOG_BYTES
from firmware_agent.health_reader import OCP, SMART, HealthReader

NOW = 1_000_000.0
LOG: dict[str, Any] = {"critical_warning": 0, "temperature": 310, "host_read_commands": 100, "data_units_written": 7}


def write(folder: Path, name: str, content: bytes, seconds: float = NOW) -> None:
    (folder / name).write_bytes(content)
    os.utime(folder / name, (seconds, seconds))


def smart(**values: Any) -> bytes:
    return json.dumps(LOG | values).encode()


def reader(folder: Path, now: float = NOW) -> HealthReader:
    return HealthReader(folder, lambda: now)


def test_without_a_helper_there_is_no_health(tmp_path: Path) -> None:
    health = reader(tmp_path / "none")
    health.begin()
    assert health.read() is None


def test_both_logs_are_read_and_read_again_when_they_change(tmp_path: Path) -> None:
    health = reader(tmp_path)
    write(tmp_path, SMART, smart())
    first = health.read()
    assert first is not None
    assert (first.temperature_celsius, first.throttling) == (37.0, None)
    assert health.read() is first
    write(tmp_path, OCP, b'{"log_page_version": 2, "current_throttling_status": 1}')
    second = health.read()
    assert second is not None
    assert second.throttling == 1


@pytest.mark.parametrize("age", [121.0, -121.0])
def test_a_log_that_is_not_of_now_tells_nothing(tmp_path: Path, age: float) -> None:
    write(tmp_path, SMART, smart(), NOW - age)
    assert reader(tmp_path).read() is None
    write(tmp_path, SMART, smart(), NOW - 0.9 * age)
    assert reader(tmp_path).read() is not None


def test_what_the_host_has_read_and_written_is_told_since_the_job_began(tmp_path: Path) -> None:
    health = reader(tmp_path)
    write(tmp_path, SMART, smart())
    told = health.read()
    assert told is not None
    assert told.io_of_job is None
    health.begin()
    write(tmp_path, SMART, smart(host_read_commands=130, data_units_written=9))
    told = health.read()
    assert told is not None
    assert told.io == IoCounters(130, None, None, 9)
    assert told.io_of_job == IoCounters(30, None, None, 2)


def test_a_refused_ocp_log_leaves_the_other_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    health = reader(tmp_path)
    with caplog.at_level(logging.WARNING):
        for degrees in (310, 311):
            write(tmp_path, SMART, smart(temperature=degrees))
            write(tmp_path, OCP, b'{"log_page_version": 77}')
            told = health.read()
            assert told is not None
            assert told.temperature_celsius == degrees - 273
    assert [record.message for record in caplog.records] == [
        "the OCP log of this drive is of version 77, and csd-emu knows 1 to 6: update csd-emu"
    ]


@pytest.mark.parametrize("content", [b"", b"{", b" " * (MAX_LOG_BYTES + 1) + smart()])
def test_a_log_that_cannot_be_read_tells_nothing(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, SMART, content)
    assert reader(tmp_path).read() is None
