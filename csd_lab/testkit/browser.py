"""A real Chromium without a window, driven over its DevTools pipe: no port, no network, no further package."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import EnvironmentUnfit

NAMES = ("chromium", "chromium-browser", "google-chrome")
_PATIENCE_SECONDS = 90.0
_LOOK_SECONDS, _END_SECONDS = 0.05, 5.0
# Whatever a page asked for outside this machine would fail, and be seen to be asked for.
_ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--disable-quic"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--remote-debugging-pipe"),
)


def find_browser() -> str:
    """Return the browser's path.

    Raises:
        EnvironmentUnfit: none is installed.
    """
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise EnvironmentUnfit(f"no Chromium is installed (looked for {', '.join(NAMES)}); make setup-dev installs one")
    return found


class Browser:
    """A running Chromium; a context manager."""

    def __init__(self, program: str) -> None:
        """Start the browser at the path `program`, with a profile of its own that ends with it."""
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
            start_new_session=True,
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
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)
        # Its children, which end without being waited for, may still write a file.
        deadline = Deadline(_END_SECONDS)
        while os.path.exists(self._folder) and not deadline.expired:
            shutil.rmtree(self._folder, ignore_errors=True)
            select.select([], [], [], _LOOK_SECONDS)

    def open(self, url: str, width: int, dark: bool, height: int = 900) -> Tab:
        """Open an address in a new tab of that size, in CSS pixels, and wait until it is loaded.

        Raises:
            EnvironmentUnfit: the browser does not answer, as for all of its calls.
        """
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        tab = Tab(self, session, target)
        for domain in ("Page", "Network", "Log", "Runtime"):
            tab.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        tab.call("Emulation.setDeviceMetricsOverride", size)
        tab.set_media(dark)
        tab.call("Page.bringToFront")  # one behind another is not painted, and what waits for a frame waits for ever
        tab.call("Page.navigate", {"url": url})
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
                if "error" in answer:
                    raise EnvironmentUnfit(f"the browser refuses {method}: {answer['error']}; use a current Chromium")
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self, deadline: Deadline) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], deadline.left_seconds)
            data = os.read(self._answers, 1 << 20) if ready else b""
            if not data:
                what = "has ended" if ready else f"has not answered for {_PATIENCE_SECONDS:.0f} s"
                raise EnvironmentUnfit(f"the browser {what}; is there enough memory for it?")
            self._rest += data
        line, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        if "id" not in message:
            self.events.append(message)
        return message


class Tab:
    """A page in the browser."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        """Take what `Browser.open` has opened."""
        self._browser, self._session, self._target = browser, session, target

    def call(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call a method of the DevTools protocol for this page."""
        return self._browser.call(method, parameters, self._session)

    def close(self) -> None:
        """Close the page."""
        self._browser.call("Target.closeTarget", {"targetId": self._target})

    def set_media(self, dark: bool, reduced_motion: bool = False) -> None:
        """Say what the user's system prefers."""
        features = {
            "prefers-color-scheme": "dark" if dark else "light",
            "prefers-reduced-motion": "reduce" if reduced_motion else "no-preference",
        }
        wanted = [{"name": name, "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", {"features": wanted})

    def seen(self, method: str) -> list[dict[str, Any]]:
        """Return the events of that name so far."""
        return [
            event["params"]
            for event in self._browser.events
            if event["method"] == method and event.get("sessionId") == self._session
        ]

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page.

        Raises:
            EnvironmentUnfit: it throws.
        """
        answer = self.call("Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in answer:
            raise EnvironmentUnfit(f"the page cannot evaluate {expression!r}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, expression: str, seconds: float = _PATIENCE_SECONDS) -> Any:
        """Return the value of an expression as soon as it is true.

        Raises:
            EnvironmentUnfit: it never was.
        """
        deadline = Deadline(seconds)
        while not (value := self.evaluate(expression)):
            if deadline.expired:
                raise EnvironmentUnfit(f"{expression!r} did not become true in the page within {seconds:.0f} s")
            select.select([], [], [], _LOOK_SECONDS)
        return value

    def press(self, key: str, shift: bool = False) -> None:
        """Press a key by its name, such as ``Tab``, ``Enter`` or ``ArrowRight``."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36}
        codes |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        event = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key], "modifiers": 8 if shift else 0}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", {"type": "keyDown" if text else "rawKeyDown", **event, **text})
        self.call("Input.dispatchKeyEvent", {"type": "keyUp", **event})

    def requests(self) -> list[str]:
        """Return what the page asked for."""
        self.evaluate("0")  # events that have come in the meantime are read
        return [event["request"]["url"] for event in self.seen("Network.requestWillBeSent")]

    def complaints(self) -> list[str]:
        """Return what the console shows."""
        self.evaluate("0")
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
