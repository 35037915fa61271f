"""What drives report of a step, as a report of a round."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from firmware_agent.common.frames.frame_fields import Metered, PhaseSeconds
from firmware_agent.common.frames.step_frames import Stepped
from firmware_agent.common.health.drive_health import DriveHealth
from host.training.sync.step_result import returned_reports

HEALTH = DriveHealth(temperature_celsius=40.0)


@pytest.mark.parametrize(("told", "kept"), [(HEALTH, HEALTH), (msgspec.UNSET, None)])
def test_meter_and_health_of_a_step_are_those_of_its_report(told: Any, kept: DriveHealth | None) -> None:
    stepped = Stepped(3, 8, 0.5, PhaseSeconds(forward=1.0), 512, 1000, Metered(2.0, 1.0), told)
    work = SimpleNamespace(session=SimpleNamespace(hello=SimpleNamespace(clock="wall")), micro_batch=4)
    outcome: Any = SimpleNamespace(device="csd-00", work=work, stepped=stepped, sent_bytes=1, received_bytes=2)
    lost: Any = SimpleNamespace(stepped=None)
    (report,) = returned_reports([outcome, lost])
    assert report.trained.metered == Metered(2.0, 1.0)
    assert report.trained.health == kept
    assert report.trained.peak_memory_bytes == 1000
