"""Client of the keeper process: starts it, sends it requests, and makes sure that nothing is left running."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from firmware_agent.common import errors

_LAST_LINES = 20
_KILL_SECONDS = 10.0


class Ticket(Future[dict[str, Any]]):
    """An answer that is to come."""

    def take(self, seconds: float) -> dict[str, Any]:
        """Return the answer, waiting for it; it may be taken again.

        Raises:
            DeviceError: there is none after so many wall seconds.
            CsdError: the keeper could not do it; the error is of the class that it was there.
        """
        try:
            answer = self.result(seconds)
        except TimeoutError:
            raise errors.DeviceError(f"no answer within {seconds:.0f} s of wall time; allow more") from None
        if "error" in answer:
            raise getattr(errors, answer["error"], errors.CsdError)(answer["message"])
        return answer


class KeeperProcess:
    """A keeper, as a process of its own session: Ctrl-C reaches the tests alone, and these end it."""

    def __init__(self, array: str, log: Path) -> None:
        """Start it; its arrays will be called `array`, and what it says goes to `log`."""
        self._array, self._log = array, log
        self._tickets: dict[int, Ticket] = {}
        self._numbers, self._lock = itertools.count(1), threading.Lock()
        with open(log, "ab") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "host.app.pytest_plugin.keeper", array],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                start_new_session=True,
            )
        threading.Thread(target=self._read, name="csd-keeper", daemon=True).start()
        # The project's own modules can be named as models; last, so that they hide nothing of the keeper's.
        self.send("paths", paths=sys.path)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def send(self, what: str, **values: Any) -> Ticket:
        """Ask for something, and return the ticket for the answer."""
        number, ticket = next(self._numbers), Ticket()
        line = json.dumps({"number": number, "do": what, **values}).encode() + b"\n"
        with self._lock:
            self._tickets[number] = ticket
            try:
                if self._process.stdin is None or self._process.stdin.closed:
                    raise BrokenPipeError
                self._process.stdin.write(line)
                self._process.stdin.flush()
            except BrokenPipeError:
                self._tickets.pop(number)
                ticket.set_result(self._ended())
        return ticket

    def ask(self, what: str, seconds: float, **values: Any) -> dict[str, Any]:
        """Ask for something and wait for the answer (see `Ticket.take`)."""
        return self.send(what, **values).take(seconds)

    def close(self, seconds: float) -> None:
        """Have it end its drives and itself; if it does not within so many seconds, end both."""
        with self._lock, contextlib.suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_KILL_SECONDS)
        if self._process.returncode != 0:
            self._sweep()

    def _read(self) -> None:
        stream = self._process.stdout
        for line in stream if stream is not None else ():
            answer = json.loads(line)
            with self._lock:
                ticket = self._tickets.pop(answer["number"], None)
            if ticket is not None:
                ticket.set_result(answer)
        with self._lock:
            left, self._tickets = list(self._tickets.values()), {}
        for ticket in left:
            ticket.set_result(self._ended())

    def _ended(self) -> dict[str, Any]:
        """Return the answer of a keeper that is no more, once its last words can be read."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_SECONDS)
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        said = "\n".join(f"    {line}" for line in lines)
        return {"error": "DeviceError", "message": f"the keeper of {self._array} has ended; its last words:\n{said}"}

    def _sweep(self) -> None:
        """End the drives of a keeper that could not do it itself."""
        with open(self._log, "ab") as stream:
            stream.write(f"{time.strftime('%H:%M:%S')} sweep {self._array}\n".encode())
            command = [sys.executable, "-P", "-m", "host", "sweep", self._array]
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, check=False)
