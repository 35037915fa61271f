"""Connection to the process that keeps an array: starts it, asks it, and makes sure that nothing is left running."""

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
from typing import IO, Any

from firmware_agent.common import errors

NAME_PREFIX = "python-"
"""Of arrays of `csd_emu.Array`; behind it stands the program's process."""
_LAST_LINES = 20
_KILL_SECONDS = 10.0


class Ticket(Future[dict[str, Any]]):
    """An answer that is to come.

    Attributes:
        number: of the request.
        directory: of the run that was asked for, as soon as it has one.
    """

    number = 0
    directory: Path | None = None

    def take(self, seconds: float | None) -> dict[str, Any]:
        """Return the answer, waiting for it, without a limit if `seconds` is None; it may be taken again.

        Raises:
            DeviceError: there is none after so many wall seconds.
            CsdError: the process could not do it; the error is of the class that it was there.
        """
        try:
            answer = self.result(seconds)
        except TimeoutError:
            raise errors.DeviceError(f"no answer within {seconds or 0:.0f} s of wall time; allow more") from None
        if "error" in answer:
            raise getattr(errors, answer["error"], errors.CsdError)(answer["message"])
        return answer


class ArrayConnection:
    """The process, in a session of its own: Ctrl-C reaches the program alone, and that ends it.

    Attributes:
        log: what it says.
    """

    def __init__(self, array: str, log: Path) -> None:
        """Start it; its arrays will be called `array`, and what it says goes to `log`."""
        self._array, self.log = array, log
        self._tickets: dict[int, Ticket] = {}
        self._numbers, self._lock = itertools.count(1), threading.Lock()
        with open(log, "ab") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "host.app.python_api.array_server", array],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                start_new_session=True,
            )
        threading.Thread(target=self._read, name="csd-array", daemon=True).start()
        # The project's own modules can be named as models; last, so that they hide nothing of ours.
        self.send("paths", paths=sys.path)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def send(self, what: str, **values: Any) -> Ticket:
        """Ask for something, and return the ticket for the answer."""
        number, ticket = next(self._numbers), Ticket()
        ticket.number = number
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

    def ask(self, what: str, seconds: float | None, **values: Any) -> dict[str, Any]:
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
        assert stream is not None
        with stream:
            self._hand_out(stream)
        with self._lock:
            left, self._tickets = list(self._tickets.values()), {}
        for ticket in left:
            ticket.set_result(self._ended())

    def _hand_out(self, lines: IO[bytes]) -> None:
        for line in lines:
            answer = json.loads(line)
            with self._lock:
                if "directory" in answer:
                    self._tickets[answer["number"]].directory = Path(answer["directory"])
                    continue
                ticket = self._tickets.pop(answer["number"], None)
            if ticket is not None:
                ticket.set_result(answer)

    def _ended(self) -> dict[str, Any]:
        """Return the answer of a process that is no more, once its last words can be read."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_SECONDS)
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        said = "\n".join(f"    {line}" for line in lines)
        return {
            "error": "DeviceError",
            "message": f"the process of array {self._array} has ended; its last words:\n{said}",
        }

    def _sweep(self) -> None:
        """End the drives of a process that could not do it itself."""
        with open(self.log, "ab") as stream:
            stream.write(f"{time.strftime('%H:%M:%S')} sweep {self._array}\n".encode())
            command = [sys.executable, "-P", "-m", "host", "clean", self._array]
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, check=False)
