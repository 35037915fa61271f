import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from csd_emu.image import boot_check as check
from csd_emu.image.boot_check import Bootable, check_boot, judge
from firmware_agent.common.errors import ImageError

GOOD: dict[str, Any] = {"system": "running", "failed_units": "", "gradient_norm": 0.43, "versions": {}}
READY = 'CSD-AGENT READY {"torch": "2.9.1"}'
BOOTABLE = Bootable(Path("disk"), Path("kernel"), Path("initrd"), "quiet")


def console(report: dict[str, Any] | None, *more: str) -> str:
    first = [] if report is None else [f"[  1.0] CSD-CHECK {json.dumps(report)}"]
    return "\r\n".join(["[    0.1] kernel", *first, *more, ""])


def test_a_good_boot_gives_its_report() -> None:
    assert judge(console(GOOD, "noise", READY)) == GOOD


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "could not be checked.*\n.*nothing"),
        (console(None, "Fatal Python error: Illegal", *"123456789abcdefg"), r"could not be checked \(Fatal Python"),
        (console(GOOD | {"system": "degraded"}, READY), "systemd is degraded"),
        (console(GOOD | {"failed_units": "ssh.service failed"}, READY), "failed units: ssh.service"),
        (console(GOOD | {"gradient_norm": float("nan")}, READY), "gradient"),
        (console(GOOD | {"gradient_norm": float("inf")}, READY), "gradient"),
        (console(GOOD | {"gradient_norm": 0.0}, READY), "gradient"),
        (console(GOOD, "Traceback", "ImportError: x"), "did not become ready(.|\n)*ImportError: x"),
        ("CSD-CHECK {half a li", "could not be checked"),
        ("CSD-CHECK {}\n" + READY, "could not be checked"),
    ],
)
def test_a_bad_boot_says_why_and_shows_the_console(text: str, why: str) -> None:
    with pytest.raises(ImageError, match=why):
        judge(text)


def machine(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(check, "machine_command", lambda _: [sys.executable, "-c", program])


def test_the_machine_is_ended_once_the_agent_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = console(GOOD, READY)
    machine(monkeypatch, f"print({lines!r}, flush=True); import time; time.sleep(5)")
    assert check_boot(BOOTABLE, threading.Event()) == GOOD


def test_a_machine_that_powers_off_early_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "print('Kernel panic - not syncing')")
    with pytest.raises(ImageError, match="Kernel panic"):
        check_boot(BOOTABLE, threading.Event())


def test_a_machine_that_hangs_is_ended_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "import time; time.sleep(5)")
    with pytest.raises(ImageError, match="no end after"):
        check_boot(BOOTABLE, threading.Event(), deadline_seconds=0.0)


def test_a_cancelled_build_ends_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "import time; time.sleep(5)")
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(ImageError, match="cancelled"):
        check_boot(BOOTABLE, cancelled)
