"""Several servers as processes on this machine: a store, agents of torchrun, workers, native drives."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import safetensors.numpy

from csd_emu.paths import HOME_VARIABLE
from tests.commands import PROGRAM, processes, temporary_workshop, wait_until
from tests.commands import Workshop as OneServer

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
    """A servers file and its servers ``a`` and ``b``, each with folders of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.write("array.yaml", ARRAY)
        self.servers_file = self.write_servers()
        self.started: list[subprocess.Popen[str]] = []

    def write_servers(self, **fields: Any) -> Path:
        content = {
            "name": "hall",
            "servers": [{"name": name, "array": "array.yaml"} for name in ("a", "b")],
            "store": {"port": free_port()},
            "membership": {"wait": "180 s", "silence": "10 s"},
        }
        return self.write("servers.yaml", content | fields)

    def home_of(self, server: str) -> Path:
        return self.folder / f"home-{server}"

    def go(self, server: str, *arguments: str | Path) -> subprocess.Popen[str]:
        """Start a command as one of the servers, or as the store's machine."""
        process = subprocess.Popen(
            [*PROGRAM, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {HOME_VARIABLE: str(self.home_of(server)), "TMPDIR": str(self.temporary)},
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def train(self, server: str, job: Path, runs: str = "") -> subprocess.Popen[str]:
        folder = self.folder / f"runs-{runs or server}"
        return self.go(server, "run", job, "--servers", self.servers_file, "--server", server, "--runs", folder)

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
        """All processes that work for a server: host, agent, worker, drives."""
        home = str(self.home_of(server))
        found = []
        for process in processes():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(HOME_VARIABLE) == home or any(home in part for part in process.cmdline()):
                    found.append(process)
        return found

    def kill(self, server: str) -> None:
        """End all that is a server's, at once and without a word."""
        found = self.of_server(server)
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, 30)

    def assert_nothing_left(self) -> None:
        for server in ("a", "b", "store"):
            wait_until(lambda name=server: not self.of_server(name))
            sockets = [path for path in self.home_of(server).rglob("*") if path.is_socket()]
            assert not sockets

    def close(self) -> None:
        for server in ("a", "b", "store"):
            self.kill(server)
        for process in self.started:
            process.kill()
            process.communicate()


@pytest.fixture
def servers() -> Iterator[Servers]:
    with temporary_workshop(Servers) as made:
        try:
            yield made
        finally:
            made.close()


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    out, err = process.communicate(timeout=LONGEST_SECONDS)
    assert process.returncode == code, out + err
    return out + err


def assert_close(one: dict[str, Any], other: dict[str, Any], tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_allclose(other[name], array, rtol=tolerance, atol=tolerance)


def test_two_servers_train_as_one_and_who_differs_is_turned_away(servers: Servers) -> None:
    job = servers.write("job.yaml", JOB)
    other = servers.write("other.yaml", JOB | {"learning_rate": 0.02})
    servers.write_servers(membership={"min": 2, "wait": "180 s"})
    with servers.store():
        first = servers.train("a", job)  # which waits for the second
        wait_until(lambda: any(servers.home_of("a").rglob("identity.tar")), LONGEST_SECONDS)
        refused = ended(servers.train("b", other, "other"), 2)
        second = servers.train("b", job)
        for process in (first, second):
            ended(process)
    assert "the job differ" in refused
    assert not list(servers.folder.glob("runs-other/*"))
    assert [step["step"] for step in servers.steps_of("a")] == list(range(1, 11))
    for step in servers.steps_of("b"):
        assert step["servers"]["present"] == ["a", "b"]
    ours = servers.weights_of("a")
    for name, array in servers.weights_of("b").items():
        np.testing.assert_array_equal(array, ours[name])
    servers.assert_nothing_left()
    # The same drives on one server; float32 sums in another order.
    four = servers.write("four.yaml", ARRAY | {"devices": [{"profile": "newport", "count": 4}]})
    ended(servers.go("a", "run", job, "--array", four, "--runs", servers.folder / "runs-one"))
    assert_close(servers.weights_of("one"), ours, 1e-4)


@pytest.mark.long
def test_a_server_that_is_killed_is_not_waited_for_and_catches_up_when_it_comes_back(servers: Servers) -> None:
    job = servers.write("job.yaml", JOB | {"rounds": 40})
    with servers.store():
        a, b = (servers.train(name, job) for name in ("a", "b"))
        wait_until(lambda: len(servers.steps_of("b")) >= 10, LONGEST_SECONDS)
        servers.kill("b")
        b.communicate()
        wait_until(lambda: any(step["servers"]["present"] == ["a"] for step in servers.steps_of("a")), LONGEST_SECONDS)
        again = servers.train("b", job, "again")
        ended(a)
        ended(again)
    steps = servers.steps_of("a")
    assert [step["step"] for step in steps] == list(range(1, 201))
    present = [name for name, _ in itertools.groupby(tuple(step["servers"]["present"]) for step in steps)]
    assert present[:2] == [("a", "b"), ("a",)]
    assert present[-1] == ("a", "b")
    back = servers.steps_of("again")
    assert [step["step"] for step in back] == list(range(back[0]["step"], 201))
    ours = servers.weights_of("a")
    for name, array in servers.weights_of("again").items():
        np.testing.assert_array_equal(array, ours[name])
    servers.assert_nothing_left()


def test_servers_that_add_up_every_few_steps_end_with_the_same_weights(servers: Servers) -> None:
    job = servers.write("job.yaml", JOB)
    servers.write_servers(membership={"min": 2, "wait": "180 s"}, reduce_every=3)
    with servers.store():
        for process in [servers.train(name, job) for name in ("a", "b")]:
            ended(process)
    ours = servers.weights_of("a")
    for name, array in servers.weights_of("b").items():
        np.testing.assert_array_equal(array, ours[name])
    for server in ("a", "b"):
        steps = servers.steps_of(server)
        assert [step["step"] for step in steps] == list(range(1, 11))
        # A window of three steps, and one that the round ends.
        sums = [step["step"] for step in steps if step["servers"]["reduce_seconds"]]
        assert sums == [3, 5, 8, 10]
    servers.assert_nothing_left()


@pytest.mark.long
def test_a_server_that_is_killed_in_a_window_loses_that_window_alone(servers: Servers) -> None:
    job = servers.write("job.yaml", JOB | {"rounds": 10, "sync": {"round_steps": 20}})
    servers.write_servers(reduce_every=20, membership={"min": 1, "wait": "180 s", "silence": "10 s"})
    with servers.store():
        a, b = (servers.train(name, job) for name in ("a", "b"))
        wait_until(lambda: len(servers.steps_of("b")) >= 20, LONGEST_SECONDS)
        servers.kill("b")
        b.communicate()
        ended(a)
    steps = servers.steps_of("a")
    assert [step["step"] for step in steps] == list(range(1, 201))
    present = [step["servers"]["present"] for step in steps]
    begins = [number for number in range(1, 200) if present[number] != present[number - 1]]
    assert present[-1] == ["a"]
    assert ["a", "b"] in present
    assert all(begin % 20 == 0 for begin in begins)
    assert len(servers.steps_of("b")) % 20 == 0
