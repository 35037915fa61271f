"""What `docker-compose up` says when it cannot work; each case is one container, soon over."""

import contextlib
import socket
import subprocess

import pytest

from csd_lab.testkit.containers import Stack, docker, image_version
from tests.compose.conftest import TOP

pytestmark = [pytest.mark.compose, pytest.mark.long]


@pytest.mark.parametrize(
    ("count", "why"),
    [
        ("0", "CSD_COUNT: Input should be greater than or equal to 1"),
        ("-1", "CSD_COUNT: Input should be greater than or equal to 1"),
        ("four", "CSD_COUNT: Input should be a valid integer"),
        ("900", "this container may use|this machine has free"),
    ],
)
def test_a_count_that_cannot_be_is_one_line(stack: Stack, count: str, why: str) -> None:
    done = stack.compose("run", "--rm", "--no-deps", "-T", "drives", CSD_COUNT=count)
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("csd-emu: ")]
    assert done.returncode == 2, done.stderr
    assert len(said) == 1
    assert any(part in said[0] for part in why.split("|")), said
    assert "Traceback" not in done.stderr + done.stdout


FULL = ("--env", "CSD_EMU_HOME=/small", "--tmpfs")
READ_ONLY = ("--mount", "type=bind,source=/usr/share,destination=/var/lib/csd-emu,readonly")


@pytest.mark.parametrize(
    ("service", "options", "why"),
    [
        ("drives", (*FULL, "/small:size=1m,mode=1777"), "free some"),
        ("drives", (*FULL, "/small:size=600m,mode=1777"), "No space left on device"),
        ("drives", READ_ONLY, "Read-only file system"),
        ("host", READ_ONLY, "Read-only file system"),
    ],
    ids=["full", "full in the middle", "read-only", "read-only host"],
)
def test_a_volume_that_cannot_be_used_is_one_line(
    images: None, service: str, options: tuple[str, ...], why: str
) -> None:
    jobs = f"type=bind,source={TOP / 'examples' / 'quickstart'},destination=/jobs,readonly"
    code, said = run_container(f"csd-emu/{service}:{image_version()}", *options, "--mount", jobs)
    assert code == 2, said
    (line,) = [line for line in said.splitlines() if line.startswith("csd-emu: ")]
    assert why in line
    assert "Traceback" not in said


def test_a_port_that_is_taken_is_said_and_nothing_is_left(images: None) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        with Stack(TOP, "csd-test-port", {"CSD_PROMETHEUS_PORT": port}) as stack:
            done = stack.compose("up", "--detach", "prometheus", CSD_PROMETHEUS_PORT=port)
            assert done.returncode != 0
            assert port in done.stderr + done.stdout
    assert stack.left() == []


def run_container(image: str, *options: str) -> tuple[int, str]:
    """Run an image to its end, unprivileged as in the stack; return its exit code and what it said."""
    number = docker("run", "--detach", "--init", "--cap-drop=ALL", *options, image).strip()
    try:
        code = int(docker("wait", number))
        logs = subprocess.run(["docker", "logs", number], capture_output=True, text=True, check=True)
        return code, logs.stdout + logs.stderr
    finally:
        docker("rm", "--force", number)
