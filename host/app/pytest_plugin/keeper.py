"""The process that keeps the array of a test session up: ``python -m host.app.pytest_plugin.keeper NAME``.

It takes requests as lines of JSON and answers each with one. Jobs run in the main thread, one after the other; faults
are injected meanwhile. When its input ends, it interrupts what is going on, ends the drives, and itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from csd_emu.config.array_file import ArrayConfig
from csd_emu.engines import make_engine
from csd_emu.util.config_files import load_config, parse_config
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from firmware_agent.common.errors import ConfigurationError, CsdError, user_errors
from host.app.array_actions import bring_up, sweep
from host.app.inject_fault import Injection, inject_fault
from host.config.job_file import DEFAULT_DATA
from host.core.console import errors, log_to_terminal
from host.core.interrupts import INTERRUPTS
from host.fleet.array_state import ArrayState
from host.fleet.lifecycle import ArrayRequest, fetch_consoles, list_running

if TYPE_CHECKING:
    from host.app.prepare import RunRequest

Message = dict[str, Any]
_THREAD_SECONDS = 60.0


class Keeper:
    """One array at a time, all of the same name."""

    def __init__(self, name: str, paths: Paths, answers: IO[bytes]) -> None:
        """Keep arrays called `name`; write to `answers`."""
        self._name, self._paths, self._answers = name, paths, answers
        self._lock = threading.Lock()
        self._config: ArrayConfig | None = None
        self._prepared: list[ArrayConfig] = []
        self._up: ArrayRequest | None = None

    def serve(self, requests: queue.SimpleQueue[Message]) -> None:
        """Do what is asked for, until interrupted."""
        verbs = {"open": self._open, "up": self._bring_up, "run": self._run, "release": self._release}
        while True:
            message = requests.get()
            with self.answering(message["number"]) as answer:
                answer |= verbs[message["do"]](message)

    def inject(self, message: Message) -> None:
        """Inject a fault, beside whatever is going on, and answer."""
        with self.answering(message["number"]) as answer:
            given = (message[key] for key in ("device", "fault", "weight", "after", "duration"))
            injection = Injection.read(self._name, *given)
            answer["detail"] = inject_fault(injection, self._paths, Silent()).detail

    def end(self) -> None:
        """End the drives, if they are up; what did not come up has been ended already."""
        if self._up is not None:
            with INTERRUPTS.deferred():
                sweep([self._name], self._paths)
                self._up = None

    @contextlib.contextmanager
    def answering(self, number: int) -> Iterator[Message]:
        """Give the block an answer to fill, and send it; an error is an answer, too, whatever it is."""
        answer: Message = {"number": number}
        try:
            yield answer
        except (CsdError, OSError) as error:
            kind = next((c.__name__ for c in type(error).__mro__ if c.__module__ == CsdError.__module__), "CsdError")
            answer = {"number": number, "error": kind, "message": str(error)}
            errors.print(f"{kind}: {error}", markup=False)
        except user_errors() as error:  # a bug, or code of the project's that ends its program
            told = "".join(traceback.format_exception(error))
            answer = {"number": number, "error": CsdError.__name__, "message": f"{error!r} in the keeper:\n{told}"}
            errors.print(told, markup=False)
        with self._lock:
            self._answers.write(json.dumps(answer).encode() + b"\n")
            self._answers.flush()

    def _open(self, message: Message) -> Message:
        """Read an array, and prepare its engine once."""
        config = self._config = self._read_array(message["keys"], Path(message["folder"]))
        if config not in self._prepared:
            with contextlib.closing(make_engine(config, self._paths)) as engine:
                engine.prepare(Silent())
            if config.sampled:
                from host.training.sampling.sampler_machine import SamplerMachine  # torch

                SamplerMachine(ArrayRequest(config, DEFAULT_DATA, 0), 0, self._paths, Silent(), lambda *_: None)
            self._prepared.append(config)
        devices = [device.name for device in config.list_devices()]
        consoles = {name: str(self._paths.arrays / self._name / "devices" / name / "console.log") for name in devices}
        return {"engine": config.engine, "devices": devices, "consoles": consoles}

    def _read_array(self, keys: Message, folder: Path) -> ArrayConfig:
        keys = dict(keys)
        content: Message = {}
        if (file := keys.pop("array", None)) is not None:
            content = load_config(folder / file, ArrayConfig).model_dump(mode="json")
        return parse_config(content | keys | {"name": self._name}, ArrayConfig, "the mark csd")

    def _bring_up(self, message: Message) -> Message:
        """Have the array up with the data of a job."""
        self._ensure_up(self._read_job(message).array)
        return {}

    def _run(self, message: Message) -> Message:
        from host.app.run_job import run_job

        request = self._read_job(message)
        self._ensure_up(request.array)
        try:
            summary = run_job(request, self._paths, Path(message["runs"]), Silent(), quiet=True)
        finally:
            self._fetch_consoles()
        return {"summary": msgspec.to_builtins(summary)}

    def _fetch_consoles(self) -> None:
        folder = self._paths.arrays / self._name
        with contextlib.suppress(CsdError):
            if (state := ArrayState.load(folder)) is not None:
                fetch_consoles(state, folder, self._paths)

    def _read_job(self, message: Message) -> RunRequest:
        from host.app.prepare import prepare_run
        from host.config.job_file import parse_job
        from host.config.resolve import ResolvedRun

        if self._config is None:
            raise ConfigurationError("no array was opened")
        where, folder, content = message["where"], Path(message["folder"]), message["job"]
        job, spec = parse_job(content, where, folder)
        return prepare_run(ResolvedRun(self._config, job, spec))

    def _ensure_up(self, request: ArrayRequest) -> None:
        """Bring the array up, unless it is, and whole, with these data."""
        up, state = self._up, ArrayState.load(self._paths.arrays / self._name)
        if up is not None and state is not None:
            same = (up.config, up.data, up.seed) == (request.config, request.data, request.seed)
            if same and len(list_running(state, self._paths)) == len(state.devices):
                return
        self.end()
        bring_up(request, self._paths, Silent())
        self._up = request

    def _release(self, message: Message) -> Message:
        if message["end"]:
            self.end()
        return {}


def read_requests(stream: IO[bytes], keeper: Keeper, requests: queue.SimpleQueue[Message]) -> None:
    """Hand out requests until the stream ends; then interrupt the main thread."""
    injections: list[threading.Thread] = []
    for line in stream:
        message: Message = json.loads(line)
        if message["do"] == "inject":
            injections.append(threading.Thread(target=keeper.inject, args=(message,)))
            injections[-1].start()
        elif message["do"] == "paths":
            sys.path += [path for path in message["paths"] if path not in sys.path]
            with keeper.answering(message["number"]):
                pass
        else:
            requests.put(message)
    for thread in injections:  # one that brings a drive back to life must not miss the array's end
        thread.join(_THREAD_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def main(name: str) -> None:
    """Serve standard input until it ends."""
    answers = os.fdopen(os.dup(1), "wb")
    log_to_terminal()
    os.dup2(2, 1)  # whoever prints must not do so among the answers
    keeper, requests = Keeper(name, Paths.default(), answers), queue.SimpleQueue[Message]()
    reader = threading.Thread(target=read_requests, args=(sys.stdin.buffer, keeper, requests), daemon=True)
    with INTERRUPTS.installed():
        try:
            reader.start()
            keeper.serve(requests)
        except KeyboardInterrupt:
            pass
        finally:
            keeper.end()


if __name__ == "__main__":
    main(sys.argv[1])
