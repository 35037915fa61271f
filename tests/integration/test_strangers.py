"""Strangers at the ports of a real run on the native engine: it trains on, writes everything down, and ends well."""

import contextlib
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_native_run import free_port
from tests.support.commands import ARRAY, Workshop, wait_until

# As many files as systemd gives a process that asks for no more, of which a run with two drives needs a quarter.
FILES = 1024
STRANGERS = 1100
ROUNDS = 40


@contextlib.contextmanager
def held(port: int) -> Iterator[None]:
    """Connections that never say a word."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    strangers: list[socket.socket] = []
    try:
        for _ in range(STRANGERS):
            strangers.append(socket.create_connection(("127.0.0.1", port), 20))
        yield
    finally:
        for each in strangers:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.long
def test_a_run_with_few_files_outlives_1100_idle_connections(workshop: Workshop) -> None:
    """They took all its files: records and checkpoints could not be written, and drives not dial in."""
    port = free_port()
    workshop.write("array.yaml", ARRAY | {"host": {"port": port}})
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES}))"
    script = f"{limited}; import sys, runpy; sys.argv[0] = 'csd-emu'; runpy.run_module('host', run_name='__main__')"
    arguments = workshop.job_arguments(rounds=ROUNDS, epochs=1, target=None, checkpoint={"every": 1})
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=workshop.environment,
        cwd=Path(__file__).parents[2],
        start_new_session=True,
    )
    wait_until(lambda: bool(workshop.rounds()) or process.poll() is not None)
    with held(port):
        assert len(workshop.rounds()) < ROUNDS - 5
        _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "Too many open files" not in err
    directory = workshop.run_directory()
    rounds = [record for record in workshop.records(directory) if record["kind"] == "round"]
    assert [len(each["devices"]) for each in rounds] == [2] * ROUNDS
    assert not [each for each in workshop.records(directory) if each.get("what") == "lost"]
    assert (directory / "summary.json").exists()
    workshop.assert_clean()
