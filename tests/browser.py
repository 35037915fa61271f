"""A real Chromium without a window, driven over its DevTools pipe: no port, no network, no further package."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from csd_emu.deadline import Deadline
from tests.machines import REQUIRE_VARIABLE

NAMES = ("chromium", "chromium-browser", "google-chrome")
_PATIENCE_SECONDS = 90.0
# Whatever the page asked for over the network would fail, and be seen to be asked for.
_ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe"),
)


def find_browser() -> str:
    """Return the browser's path; without one the test is skipped, unless CSD_REQUIRE_VM=1 says that it must run."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        reason = f"no Chromium is installed (looked for {', '.join(NAMES)}); make setup-dev installs one"
        pytest.fail(reason) if os.environ.get(REQUIRE_VARIABLE) == "1" else pytest.skip(reason)
    return found


class Browser:
    """A running Chromium; a context manager. One page at a time."""

    def __init__(self, program: str) -> None:
        self._folder = tempfile.mkdtemp(prefix="csd-browser-")
        # The browser reads commands from descriptor 3 and answers on 4; the shell puts our ends there.
        (command_out, self._commands), (self._answers, answer_in) = os.pipe(), os.pipe()
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (command_out, answer_in)]
        shell = ["bash", "-c", f'exec "$@" 3<&{high[0]} 4>&{high[1]}', "-", program, *_ARGUMENTS]
        self._process = subprocess.Popen(
            [*shell, f"--user-data-dir={self._folder}", "about:blank"],
            pass_fds=high,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (command_out, answer_in, *high):
            os.close(end)
        self._number, self._rest = 0, b""
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)
        shutil.rmtree(self._folder, ignore_errors=True)

    def open(self, path: Path, width: int, dark: bool) -> Tab:
        """Open a file in a new tab of that width, and wait until it is loaded."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        tab = Tab(self, session)
        for domain in ("Page", "Network", "Log", "Runtime"):
            tab.call(f"{domain}.enable")
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        tab.call("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tab.call("Emulation.setEmulatedMedia", {"features": [scheme]})
        tab.call("Page.navigate", {"url": path.as_uri()})
        deadline = Deadline(_PATIENCE_SECONDS)
        while not tab.seen("Page.loadEventFired"):
            self._receive(deadline)
        return tab

    def call(self, method: str, parameters: dict[str, Any] | None = None, session: str | None = None) -> dict[str, Any]:
        """Call a method of the DevTools protocol and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters or {}}
        os.write(self._commands, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        deadline = Deadline(_PATIENCE_SECONDS)
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self, deadline: Deadline) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], deadline.left_seconds)
            assert ready, "the browser does not answer"
            data = os.read(self._answers, 1 << 20)
            assert data, "the browser has ended"
            self._rest += data
        line, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        if "id" not in message:
            self.events.append(message)
        return message


class Tab:
    """A page in the browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def call(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._browser.call(method, parameters, self._session)

    def seen(self, method: str) -> list[dict[str, Any]]:
        """The events of that name so far."""
        return [
            event["params"]
            for event in self._browser.events
            if event["method"] == method and event.get("sessionId") == self._session
        ]

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", {"expression": expression, "returnByValue": True})
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def requests(self) -> list[str]:
        """What the page asked for."""
        return [event["request"]["url"] for event in self.seen("Network.requestWillBeSent")]

    def complaints(self) -> list[str]:
        """What the console shows."""
        logged = [event["entry"]["text"] for event in self.seen("Log.entryAdded")]
        thrown = [str(event) for event in self.seen("Runtime.exceptionThrown")]
        return logged + thrown + [str(event["args"]) for event in self.seen("Runtime.consoleAPICalled")]

    def screenshot(self, path: Path) -> None:
        """Write the whole page as a picture."""
        height = self.evaluate("document.documentElement.scrollHeight")
        width = self.evaluate("document.documentElement.clientWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        answer = self.call("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        path.write_bytes(base64.b64decode(answer["data"]))
