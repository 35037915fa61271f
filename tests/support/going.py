"""A run that goes on while a test does something to its drives."""

import contextlib
import shutil
import signal
from collections.abc import Callable, Iterator
from typing import Any

from tests.support.commands import Done, Workshop, wait_until


class Going:
    """A run that is going on, and what it has written down so far."""

    def __init__(self, workshop: Workshop, inject: Callable[..., Done], seconds: float = 60.0, **job: Any) -> None:
        """Start it and wait for its first round.

        Args:
            workshop: its files; it makes the only run directory there.
            inject: runs ``csd-emu inject ARRAY`` with more arguments.
            seconds: how long a round that is waited for may take.
            job: what is different in the job file.
        """
        self.workshop, self._inject, self._seconds = workshop, inject, seconds
        self._process = workshop.start(*workshop.job_arguments(**{"target": None} | job), "--json")
        wait_until(self._first_round, seconds)

    def inject(self, device: str, *fault: str) -> Done:
        return self._inject(device, *fault, "--json")

    def injected(self, device: str, *fault: str) -> str:
        """Inject what must succeed; return what came of it."""
        done = self.inject(device, *fault)
        assert done.code == 0, done.err
        report = done.json("inject")
        assert (report["device"], report["fault"]) == (device, fault[0])
        assert report["recorded"]
        detail: str = report["detail"]
        return detail

    def refused(self, why: str, code: int, device: str, *fault: str) -> None:
        done = self.inject(device, *fault)
        assert (done.code, done.out) == (code, "")
        assert why in done.err

    def events(self, device: str) -> list[str]:
        """What happened to a device."""
        records = self.workshop.records(self.workshop.run_directory())
        return [record["what"] for record in records if record["kind"] == "event" and record["device"] == device]

    def details(self, what: str) -> list[str]:
        records = self.workshop.records(self.workshop.run_directory())
        return [record["detail"] for record in records if record["kind"] == "event" and record["what"] == what]

    def wait_for_round(self, *devices: str, since: int | None = None) -> dict[str, Any]:
        """Return the first round, of those after `since`, else from now on, to which just these devices returned."""
        seen = len(self.workshop.rounds()) if since is None else since
        found: list[dict[str, Any]] = []

        def look() -> bool:
            assert self._process.poll() is None, self._process.communicate()[1]
            rounds = self.workshop.rounds()[seen:]
            found[:] = [each for each in rounds if [part["device"] for part in each["devices"]] == list(devices)]
            return bool(found)

        wait_until(look, self._seconds)
        return found[0]

    def finish(self) -> list[dict[str, Any]]:
        """Wait for the run's regular end; return its rounds."""
        out, err = self._process.communicate(timeout=300)
        assert self._process.returncode == 0, err
        assert "Traceback" not in err
        assert out
        self.workshop.assert_clean()
        return self.workshop.rounds()

    def interrupt(self) -> None:
        """End a run that is in good health, as a user would."""
        self._process.send_signal(signal.SIGINT)
        _, err = self._process.communicate(timeout=120)
        assert self._process.returncode == 130, err
        assert "Traceback" not in err

    def end(self) -> None:
        """Kill it, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def _first_round(self) -> bool:
        assert self._process.poll() is None, self._process.communicate()[1]
        return bool(self.workshop.rounds())


@contextlib.contextmanager
def runs_on(
    workshop: Workshop, inject: Callable[..., Done], seconds: float = 60.0, **job: Any
) -> Iterator[Callable[..., Going]]:
    """Yield what starts a run of `job` with changes (see `Going`); one that a failed test leaves is ended."""
    started: list[Going] = []

    def start(**changes: Any) -> Going:
        shutil.rmtree(workshop.runs, ignore_errors=True)
        started.append(Going(workshop, inject, seconds, **job | changes))
        return started[-1]

    try:
        yield start
    finally:
        for run in started:
            run.end()
