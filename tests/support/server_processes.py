"""Several servers as processes on this machine: a store, workers, native drives."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import safetensors.numpy

from csd_emu.util.paths import HOME_VARIABLE
from tests import ROOT
from tests.support.commands import PROGRAM, processes, wait_until
from tests.support.commands import Workshop as OneServer

ARRAY: dict[str, Any] = {"name": "rack", "engine": "native", "devices": [{"profile": "newport", "count": 2}]}
JOB: dict[str, Any] = {
    "model": "digits_cnn",
    "mode": "sync",
    "data": {"source": "digits", "private": 0.0},
    "rounds": 2,
    "batch_size": 16,
    "tuner": "none",
    "sync": {"round_steps": 5},
}
LONGEST_SECONDS = 240.0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Servers(OneServer):
    """A servers file and its servers, each with folders of its own."""

    names: Sequence[str] = ("a", "b")
    array_content = ARRAY

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.write("array.yaml", self.array_content)
        self.servers_file = self.write_servers()
        self.started: list[subprocess.Popen[str]] = []

    def write_servers(self, **fields: Any) -> Path:
        content = {
            "name": "hall",
            "servers": [{"name": name, "array": "array.yaml"} for name in self.names],
            "store": {"port": free_port()},
            "membership": {"wait": "180 s", "silence": "10 s"},
        }
        return self.write("servers.yaml", content | fields)

    def home_of(self, server: str) -> Path:
        return self.folder / f"home-{server}"

    def command(self, server: str, arguments: Sequence[str]) -> list[str]:
        """Return what runs a command as one of the servers."""
        return list(arguments)

    def go(self, server: str, *arguments: str | Path, code: Path = ROOT) -> subprocess.Popen[str]:
        """Start a command as one of the servers, or as the store's machine, with the code in this folder."""
        process = subprocess.Popen(
            self.command(server, [*PROGRAM, *map(str, arguments)]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {HOME_VARIABLE: str(self.home_of(server)), "TMPDIR": str(self.temporary)},
            cwd=code,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def train(self, server: str, job: Path, runs: str = "", code: Path = ROOT) -> subprocess.Popen[str]:
        where = ["--runs", self.folder / f"runs-{runs or server}"]
        return self.go(server, "run", job, "--servers", self.servers_file, "--server", server, *where, code=code)

    @contextlib.contextmanager
    def store(self) -> Iterator[None]:
        """Keep the store while the block lasts."""
        process = self.go("store", "store", self.servers_file)
        assert process.stdout is not None
        assert "until Ctrl-C" in process.stdout.readline()
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(LONGEST_SECONDS) == 0

    def records_of(self, runs: str) -> list[dict[str, Any]]:
        (directory,) = (self.folder / f"runs-{runs}").glob("*")
        return self.records(directory)

    def steps_of(self, runs: str) -> list[dict[str, Any]]:
        if not any((self.folder / f"runs-{runs}").glob("*/records.jsonl")):
            return []
        rounds = [record for record in self.records_of(runs) if record["kind"] == "round"]
        return list(itertools.chain.from_iterable(record["steps"] for record in rounds))

    def weights_of(self, runs: str) -> dict[str, Any]:
        (path,) = (self.folder / f"runs-{runs}").glob("*/model.safetensors")
        return safetensors.numpy.load_file(path)

    def of_server(self, server: str) -> list[psutil.Process]:
        """All processes that work for a server: host, worker, drives."""
        home = str(self.home_of(server))
        found = []
        for process in processes():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(HOME_VARIABLE) == home or any(home in part for part in process.cmdline()):
                    found.append(process)
        return found

    def assert_equal_weights(self, *runs: str) -> None:
        """To the bit."""
        ours = self.weights_of(runs[0])
        for other in runs[1:]:
            assert_close(ours, self.weights_of(other), 0.0)

    def kill(self, server: str) -> None:
        """End all that is a server's, at once and without a word."""
        found = self.of_server(server)
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, 30)

    def assert_nothing_left(self) -> None:
        for server in (*self.names, "store"):
            wait_until(lambda name=server: not self.of_server(name))
            sockets = [path for path in self.home_of(server).rglob("*") if path.is_socket()]
            assert not sockets

    def close(self) -> None:
        for server in (*self.names, "store"):
            self.kill(server)
        for process in self.started:
            process.kill()
            process.communicate()


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    out, err = process.communicate(timeout=LONGEST_SECONDS)
    assert process.returncode == code, out + err
    return out + err


def assert_close(one: dict[str, Any], other: dict[str, Any], tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_allclose(other[name], array, rtol=tolerance, atol=tolerance)
