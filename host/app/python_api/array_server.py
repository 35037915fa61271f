"""The process that keeps the array of a program up: ``python -m host.app.python_api.array_server NAME``.

It takes requests as lines of JSON and answers each with one. Jobs run in the main thread, one after the other; faults
are injected meanwhile. When its input ends, it interrupts what is going on, ends the drives, and itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from csd_emu.config.array_file import ArrayConfig
from csd_emu.config.engine_names import ArrayChanges
from csd_emu.engines import make_engine
from csd_emu.util.config_files import parse_config
from csd_emu.util.paths import Paths
from csd_emu.util.process_identity import mark_of
from csd_emu.util.progress import Silent
from firmware_agent.common.errors import ConfigurationError, CsdError, EnvironmentUnfit, RunCancelled, user_errors
from host.app.array_actions import bring_up, sweep
from host.app.inject_fault import Injection, inject_fault
from host.app.python_api.array_connection import NAME_PREFIX
from host.config.array_files import read_array, with_real_drives
from host.config.job_file import DEFAULT_DATA
from host.core.console import errors, log_to_terminal
from host.core.interrupts import INTERRUPTS
from host.fleet.array_state import ArrayState
from host.fleet.lifecycle import ArrayRequest, fetch_consoles, list_running

if TYPE_CHECKING:
    from host.app.prepare import RunRequest

Message = dict[str, Any]
_THREAD_SECONDS = 60.0
_END = "end"


class ArrayServer:
    """One array at a time, all of the same name."""

    def __init__(self, name: str, paths: Paths, answers: IO[bytes]) -> None:
        """Keep arrays called `name`; write to `answers`."""
        self._name, self._paths, self._answers = name, paths, answers
        self._lock = threading.Lock()
        self._config: ArrayConfig | None = None
        self._prepared: list[ArrayConfig] = []
        self._up: ArrayRequest | None = None
        # Number of the request whose run goes on, and those that were cancelled before they began.
        self._turn, self._running, self._cancelled = threading.Lock(), 0, set[int]()

    def serve(self, requests: queue.SimpleQueue[Message]) -> None:
        """Do what is asked for, until that is to end, or interrupted."""
        verbs = {"open": self._open, "up": self._bring_up, "run": self._run, "release": self._release}
        while (message := requests.get())["do"] != _END:
            with self.answering(message["number"]) as answer:
                answer |= verbs[message["do"]](message)

    def inject(self, message: Message) -> None:
        """Inject a fault, beside whatever is going on, and answer."""
        with self.answering(message["number"]) as answer:
            given = (message[key] for key in ("device", "fault", "weight", "after", "duration"))
            answer["detail"] = inject_fault(Injection.read(self._name, *given), self._paths, Silent()).detail

    def cancel(self, message: Message) -> None:
        """End a run, also one that has not begun, and answer; the drives stay up."""
        with self.answering(message["number"]), self._turn:
            if self._running != message["run"]:
                self._cancelled.add(message["run"])
            else:
                os.kill(os.getpid(), signal.SIGINT)

    def end(self) -> None:
        """End the drives, if they are up; what did not come up has been ended already."""
        if self._up is not None:
            with INTERRUPTS.deferred():
                sweep([self._name], self._paths)
                self._up = None

    def remove_folder(self) -> None:
        """Remove the array's folder: no other array is ever called so."""
        shutil.rmtree(self._paths.arrays / self._name, ignore_errors=True)

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
            answer = {
                "number": number,
                "error": CsdError.__name__,
                "message": f"{error!r} in the process of the array:\n{told}",
            }
            errors.print(told, markup=False)
        self._send(**answer)

    def _send(self, number: int, **values: Any) -> None:
        """Write an answer, or, with ``directory`` alone, where the run is whose answer is to come."""
        with self._lock:
            self._answers.write(json.dumps({"number": number, **values}).encode() + b"\n")
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
        devices, left = [device.name for device in config.list_devices()], sweep_left(self._paths)
        consoles = {name: str(self._paths.arrays / self._name / "devices" / name / "console.log") for name in devices}
        return {"engine": config.engine, "devices": devices, "consoles": consoles, "left": left}

    def _read_array(self, keys: Message, folder: Path) -> ArrayConfig:
        content = {key: value for key, value in keys.items() if key != "array"}
        if "array" not in keys:
            return with_real_drives(parse_config(content | {"name": self._name}, ArrayConfig, "the array"), folder)
        changes = ArrayChanges(content.pop("engine", None), content.pop("clock", None))
        config = read_array(folder / keys["array"], changes)
        return parse_config(config.model_dump(mode="json") | content | {"name": self._name}, ArrayConfig, keys["array"])

    def _bring_up(self, message: Message) -> Message:
        """Have the array up with the data of a job."""
        self._ensure_up(self._read_job(message).array)
        return {}

    def _run(self, message: Message) -> Message:
        from host.app.run_job import NewRun, run_job

        where = NewRun(
            Path(message["runs"]),
            lambda path, _: self._send(message["number"], directory=str(path)),
            report=False,
        )
        try:
            with self._cancellable(message["number"]):
                request = self._read_job(message)
                self._ensure_up(request.array)
                summary = run_job(request, self._paths, where, Silent(), quiet=True)
        finally:
            self._fetch_consoles()
        return {"summary": msgspec.to_builtins(summary), "hint": request.table_hint}

    @contextlib.contextmanager
    def _cancellable(self, number: int) -> Iterator[None]:
        """Have SIGINT end the block alone, with an error that says so; other signals end the process."""
        told = RunCancelled("the run was cancelled; its directory, if it has one, has the rounds until then")
        with self._turn:
            if number in self._cancelled:
                raise told
            self._running = number
        try:
            yield
        except KeyboardInterrupt:
            if INTERRUPTS.signal != signal.SIGINT:
                raise
            raise told from None
        finally:
            with INTERRUPTS.deferred():
                with self._turn:
                    self._running = 0
                if INTERRUPTS.signal == signal.SIGINT:
                    INTERRUPTS.forget()

    def _fetch_consoles(self) -> None:
        folder = self._paths.arrays / self._name
        with contextlib.suppress(CsdError):
            if (state := ArrayState.load(folder)) is not None:
                fetch_consoles(state, folder, self._paths)

    def _read_job(self, message: Message) -> RunRequest:
        from host.app.prepare import prepare_run
        from host.config.job_file import parse_job
        from host.config.resolve import ResolvedRun, load_plugins

        if self._config is None:
            raise ConfigurationError("no array was opened")
        where, folder, content = message["where"], Path(message["folder"]), message["job"]
        job, spec = parse_job(content, where, folder)
        resolved = ResolvedRun(self._config, job, spec, load_plugins(job, folder / where))
        if self._config.calibrate == "auto":
            from host.app.missing_table import measure_missing

            measure_missing(resolved, self._paths, Silent())
        return prepare_run(resolved)

    def _ensure_up(self, request: ArrayRequest) -> None:
        """Bring the array up, unless it is, and whole, with these data."""
        up, state = self._up, ArrayState.load(self._paths.arrays / self._name)
        if up is not None and state is not None:
            wanted = request.config, request.data, request.seed, request.own_sha256
            same = (up.config, up.data, up.seed, up.own_sha256) == wanted
            if same and len(list_running(state, self._paths)) == len(state.devices):
                return
        self.end()
        bring_up(request, self._paths, Silent())
        self._up = request

    def _release(self, message: Message) -> Message:
        if message["end"]:
            self.end()
        return {}


def sweep_left(paths: Paths) -> list[str]:
    """End the drives of arrays whose program is gone, and whose server was killed with it; return the arrays' names."""
    left = []
    for folder in sorted(paths.arrays.glob(f"{NAME_PREFIX}*")):
        owner = folder.name.removeprefix(NAME_PREFIX).partition("-")[0]
        if owner.isdecimal() and mark_of(int(owner)) is None and ArrayState.load(folder) is not None:
            with contextlib.suppress(EnvironmentUnfit):  # its server is about to end it
                sweep([folder.name], paths)
                shutil.rmtree(folder, ignore_errors=True)
                left.append(folder.name)
    return left


def read_requests(stream: IO[bytes], server: ArrayServer, requests: queue.SimpleQueue[Message]) -> None:
    """Hand out requests until the stream ends; then interrupt the main thread."""
    injections: list[threading.Thread] = []
    for line in stream:
        message: Message = json.loads(line)
        match message["do"]:
            case "inject":
                injections.append(threading.Thread(target=server.inject, args=(message,)))
                injections[-1].start()
            case "cancel":
                server.cancel(message)
            case "paths":
                with server.answering(message["number"]):
                    sys.path += [path for path in message["paths"] if path not in sys.path]
            case _:
                requests.put(message)
    for thread in injections:  # one that brings a drive back to life must not miss the array's end
        thread.join(_THREAD_SECONDS)
    requests.put({"do": _END})  # should what goes on fail of something else while it is being interrupted
    os.kill(os.getpid(), signal.SIGTERM)


def main(name: str) -> None:
    """Serve standard input until it ends."""
    answers = os.fdopen(os.dup(1), "wb")
    log_to_terminal()
    os.dup2(2, 1)  # whoever prints must not do so among the answers
    server, requests = ArrayServer(name, Paths.default(), answers), queue.SimpleQueue[Message]()
    reader = threading.Thread(target=read_requests, args=(sys.stdin.buffer, server, requests), daemon=True)
    with INTERRUPTS.installed():
        try:
            reader.start()
            server.serve(requests)
        except KeyboardInterrupt:
            pass
        finally:
            server.end()
            server.remove_folder()


if __name__ == "__main__":
    main(sys.argv[1])
