"""Native drives behind a shaped link, in real processes: bytes cannot pass faster, and nothing of it is left."""

import contextlib
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from csd_emu.engines.shaping.namespace_shaper import NAMESPACES, can_make_namespaces
from tests.support.commands import ARRAY, JOB, Done, Workshop

Command = Callable[..., Done]
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
NEEDS_ROOT = pytest.mark.skipif(not can_make_namespaces(), reason="needs root and iproute2")
KINDS = ["relay", pytest.param("namespace", marks=NEEDS_ROOT)]
BYTES_PER_SECOND = 300_000
LINK = {"bandwidth": f"{BYTES_PER_SECOND} B/s", "latency": "100 us"}
NAME = "shaped-lab"


def relays(home: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "csd_emu.engines.shaping.relay" in process.cmdline() and str(home) in process.cmdline()[-1]:
                found.append(process)
    return found


def assert_gone(workshop: Workshop) -> None:
    workshop.assert_clean()
    assert relays(workshop.home) == []
    assert not (NAMESPACES / f"csd-emu-{NAME}").exists()


@pytest.fixture
def shaped(workshop: Workshop) -> Iterator[Callable[[str], Workshop]]:
    def write(kind: str) -> Workshop:
        content: dict[str, Any] = ARRAY | {"name": NAME, "clock": "wall", "link": LINK | {"shaped": kind}}
        workshop.array = workshop.write("array.yaml", content)
        workshop.job = workshop.write("job.yaml", JOB)
        return workshop

    yield write
    for process in relays(workshop.home):
        process.kill()
    if (NAMESPACES / f"csd-emu-{NAME}").exists():
        subprocess.run(["ip", "netns", "del", f"csd-emu-{NAME}"], check=True)


@pytest.mark.parametrize("kind", [pytest.param("relay", marks=pytest.mark.long), KINDS[1]])
def test_a_run_takes_as_long_as_its_bytes(kind: str, shaped: Callable[[str], Workshop], csd_emu: Command) -> None:
    workshop = shaped(kind)
    done = csd_emu(*workshop.job_arguments(rounds=2, epochs=1, target=None), "--json")
    assert done.code == 0, done.err
    summary = done.json("run")
    one_way = summary["host_link_bytes"] / 2
    assert one_way > BYTES_PER_SECOND / 2  # far more than passes at once
    # A slow machine makes it longer, nothing makes it shorter.
    assert summary["wall_seconds"] > 0.9 * one_way / BYTES_PER_SECOND
    assert_gone(workshop)


@pytest.mark.parametrize("kind", [pytest.param("relay", marks=pytest.mark.long), KINDS[1]])
def test_an_array_that_is_up_keeps_its_link(kind: str, shaped: Callable[[str], Workshop], csd_emu: Command) -> None:
    workshop = shaped(kind)
    assert csd_emu("up", workshop.array, "--job", workshop.job).code == 0
    done = csd_emu(*workshop.job_arguments(rounds=1, epochs=1, target=None))
    assert done.code == 0, done.err
    assert csd_emu("down", NAME).code == 0
    assert_gone(workshop)


@pytest.mark.long
def test_a_relay_that_dies_is_one_clear_error(shaped: Callable[[str], Workshop], csd_emu: Command) -> None:
    workshop = shaped("relay")
    assert csd_emu("up", workshop.array, "--job", workshop.job).code == 0
    done = csd_emu(*workshop.job_arguments(rounds=1, epochs=1, target=None))
    assert done.code == 0, done.err
    (relay,) = relays(workshop.home)
    relay.send_signal(signal.SIGKILL)
    psutil.wait_procs([relay], timeout=10)
    done = csd_emu(*workshop.job_arguments(rounds=1, epochs=1, target=None))
    assert done.code != 0
    assert "the relay of its shaped link has ended" in " ".join(done.err.split())
    assert csd_emu("status").code == 0
    assert csd_emu("clean", NAME).code == 0
    assert_gone(workshop)
