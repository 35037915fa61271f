"""What a model in a drive of the stack reaches, and the drives' container: the host's port, and nothing beyond."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from csd_lab.bench.pipelines import rounds_done
from csd_lab.testkit.containers import Stack, docker, wait_for
from tests.compose.conftest import TOP

pytestmark = [pytest.mark.compose, pytest.mark.long]

# In a drive it looks for a way out, and is no model if it finds one.
MODEL = """
import platform, socket
from torch import nn

PLACES = [
    (address, port)
    for address in ("10.0.2.2", "host", "prometheus", "drives", "172.17.0.1", "1.1.1.1")
    for port in (7000, 8080, 9090, 22, 53)
]

def build():
    if platform.machine() == "aarch64":
        for place in PLACES:
            try:
                socket.create_connection(place, 1.0).close()
            except OSError:
                continue
            raise RuntimeError(f"a way out: {place}")
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""
JOB = "{model: canary.py:build, data: {source: digits}, rounds: 2, epochs: 1, batch_size: 64}\n"
OUTSIDE = "import socket; socket.create_connection(('1.1.1.1', 53), 5)"
HOST = "import socket; socket.create_connection(('host', 8080), 5)"


@pytest.fixture(scope="module")
def canary(images: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    jobs = tmp_path_factory.mktemp("jobs")
    for path, text in ((jobs / "canary.py", MODEL), (jobs / "job.yaml", JOB)):
        path.write_text(text)
        path.chmod(0o644)
    for folder in (jobs, *list(jobs.parents)[:2]):  # another user reads it
        Path(folder).chmod(0o755)
    settings = {"CSD_COUNT": "1", "CSD_JOBS": str(jobs)}
    with Stack(TOP, f"csd-test-{secrets.token_hex(3)}", settings) as stack:
        yield stack


def test_a_model_in_a_drive_finds_no_way_out_and_trains(canary: Stack) -> None:
    canary.up("drives", "host")
    wait_for("two rounds", lambda: rounds_done(canary) >= 2, 600.0)


def test_the_drives_container_reaches_the_hosts_and_nothing_beyond(canary: Stack) -> None:
    (network,) = json.loads(docker("network", "inspect", f"{canary.project}_drives"))
    assert network["Internal"]
    run = ("exec", "-T", "drives", "python3", "-c")
    assert canary.compose(*run, HOST).returncode == 0
    outside = canary.compose(*run, OUTSIDE)
    assert outside.returncode != 0
    # An engine drops what leaves an internal network, or leaves out the route.
    assert any(why in outside.stderr for why in ("Network is unreachable", "timed out"))
