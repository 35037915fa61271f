"""A run that was ended in any way goes on from its directory to the same weights, on the native engine."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from csd_emu.engines.native_engine import NativeEngine
from host.monitoring.run_directory import RunDirectory
from tests.support.commands import Done, Workshop, temporary_workshop, wait_until

Command = Callable[..., Done]
JOB: dict[str, Any] = {"rounds": 6, "epochs": 1, "target": {"accuracy": 1.0}, "strategy": "fedadam"}


def weights(directory: Path) -> bytes:
    return (directory / "model.safetensors").read_bytes()


def whats(workshop: Workshop, directory: Path) -> list[str]:
    return [record["what"] for record in workshop.records(directory) if record["kind"] == "event"]


@pytest.mark.long
def test_a_host_that_is_killed_resumes_to_the_same_weights_and_clears_what_it_left(
    workshop: Workshop, csd_emu: Command
) -> None:
    arguments = workshop.job_arguments(**JOB, participation=0.5)
    assert csd_emu(*arguments[:-1], workshop.folder / "other").code == 1  # below its target of 1.0
    (whole,) = (workshop.folder / "other").iterdir()
    process = workshop.start(*arguments)
    wait_until(lambda: len(workshop.rounds()) >= 2)
    process.kill()
    process.communicate()
    directory, left = workshop.run_directory(), workshop.agents()
    assert len(left) == 2
    assert not (directory / "summary.json").exists()

    done = csd_emu("run", "--resume", directory, "--json")
    assert done.code == 1, done.err
    summary = done.json("run")
    assert (summary["rounds"], summary["run_directory"]) == (6, str(directory))
    assert weights(directory) == weights(whole)
    rounds = [record for record in workshop.records(directory) if record["kind"] == "round"]
    assert [record["round"] for record in rounds] == [1, 2, 3, 4, 5, 6]
    before = [r for r in workshop.records(whole) if r["kind"] == "round"]
    assert [record["accuracy"] for record in rounds] == [record["accuracy"] for record in before]
    assert [record["idle"] for record in rounds] == [record["idle"] for record in before]
    assert "resumed" in whats(workshop, directory)
    workshop.assert_clean()

    content = {path.name: path.read_bytes() for path in directory.iterdir()}
    again = csd_emu("run", "--resume", directory)
    assert again.code == 1
    assert "this run has finished; nothing was started" in again.out
    assert content == {path.name: path.read_bytes() for path in directory.iterdir()}
    workshop.assert_clean()


@pytest.mark.long
def test_a_run_that_was_ended_before_its_first_checkpoint_begins_again_in_place(
    workshop: Workshop, csd_emu: Command
) -> None:
    arguments = workshop.job_arguments(**JOB | {"rounds": 3, "checkpoint": {"every": 0}})
    process = workshop.start(*arguments)
    wait_until(lambda: len(workshop.rounds()) >= 1)
    process.send_signal(signal.SIGINT)
    process.communicate()
    directory = workshop.run_directory()
    assert not (directory / "checkpoint.safetensors").exists()
    assert csd_emu("run", "--resume", directory).code == 1
    assert [record["round"] for record in workshop.rounds()] == [1, 2, 3]
    assert workshop.run_directory() == directory
    assert set(load_file(directory / "model.safetensors"))


@pytest.fixture(scope="module")
def once_finished() -> Iterator[Path]:
    """The directory of a run that reached its end; its folders, and the file of its model, are gone."""
    with temporary_workshop(Workshop) as workshop:
        net = workshop.write(
            "my_net.py",
            "from torch import nn\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n",
        )
        done = workshop.run_here(*workshop.job_arguments(**JOB | {"rounds": 2, "model": "my_net.py:build"}))
        assert done.code == 1, done.err
        workshop.assert_clean()
        shutil.rmtree(workshop.home)
        net.unlink()
        yield workshop.run_directory()


@pytest.fixture
def finished(workshop: Workshop, once_finished: Path) -> Path:
    """A copy of that run, without its summary: as if it was killed in the last moment."""
    shutil.copytree(once_finished, workshop.runs / once_finished.name)
    (workshop.run_directory() / "summary.json").unlink()
    return workshop.run_directory()


@pytest.fixture
def _nothing_may_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        raise AssertionError("a device was started")

    monkeypatch.setattr(NativeEngine, "start", start)


@pytest.mark.usefixtures("_nothing_may_start")
def test_a_run_that_lacks_its_summary_alone_gets_it_without_any_device(
    workshop: Workshop, csd_emu: Command, finished: Path
) -> None:
    before = weights(finished)
    (finished / "model.safetensors").unlink()
    done = csd_emu("run", "--resume", finished, "--json")
    assert (done.code, done.json("run")["rounds"]) == (1, 2)
    assert weights(finished) == before
    workshop.assert_clean()


def test_raised_rounds_go_on_from_the_end(workshop: Workshop, csd_emu: Command, finished: Path) -> None:
    """The model's file was copied into the run directory: the original, which is gone, is not needed."""
    job = finished / "job.yaml"
    job.write_text(job.read_text().replace("rounds: 2", "rounds: 3"))
    done = csd_emu("run", "--resume", finished, "--json")
    assert done.json("run")["rounds"] == 3
    assert [record["round"] for record in workshop.rounds()] == [1, 2, 3]


@pytest.mark.long
def test_a_run_that_is_prolonged_and_killed_has_not_finished(
    workshop: Workshop, csd_emu: Command, finished: Path
) -> None:
    """What was written when it ended before is gone as soon as it goes on."""
    assert csd_emu("run", "--resume", finished).code == 1
    ended = {"summary.json", "model.safetensors", "trace.json", "report.html"}
    assert ended <= {path.name for path in finished.iterdir()}
    job = finished / "job.yaml"
    job.write_text(job.read_text().replace("rounds: 2", "rounds: 200"))
    process = workshop.start("run", "--resume", finished)
    wait_until(lambda: len(workshop.rounds()) >= 3)
    process.kill()
    process.communicate()
    assert not ended & {path.name for path in finished.iterdir()}
    job.write_text(job.read_text().replace("rounds: 200", "rounds: 4"))
    done = csd_emu("run", "--resume", finished, "--json")
    assert done.json("run")["rounds"] >= 4
    assert ended <= {path.name for path in finished.iterdir()}
    workshop.assert_clean()


def cut_short(directory: Path) -> None:
    path = directory / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def flipped(directory: Path) -> None:
    path = directory / "checkpoint.safetensors"
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)


def other_job(directory: Path) -> None:
    path = directory / "job.yaml"
    path.write_text(path.read_text().replace("momentum: 0.9", "momentum: 0.8"))


def other_model(directory: Path) -> None:
    path = directory / "my_net.py"
    path.write_text(path.read_text().replace("nn.Flatten()", "nn.Flatten(), nn.ReLU()"))


def no_records(directory: Path) -> None:
    (directory / "records.jsonl").unlink()


def no_job(directory: Path) -> None:
    (directory / "job.yaml").unlink()


@pytest.mark.usefixtures("_nothing_may_start")
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut_short, ["checkpoint.safetensors: is cut short or damaged", "restore the file from a copy, or remove it"]),
        (flipped, ["checkpoint.safetensors: is damaged", "sha256"]),
        (other_job, ["is of another job than lies beside it", "undo that"]),
        (other_model, ["my_net.py: is another than the run began with", "undo the change"]),
        (no_records, ["records.jsonl: does not hold the 2 rounds"]),
        (no_job, ["is no run directory with job.yaml"]),
    ],
)
def test_a_damaged_run_directory_is_one_clear_error_and_stays_as_it_is(
    workshop: Workshop, csd_emu: Command, finished: Path, damage: Callable[[Path], None], words: list[str]
) -> None:
    damage(finished)
    content = {path.name: path.read_bytes() for path in finished.iterdir()}
    done = csd_emu("run", "--resume", finished)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("csd-emu: ")
    for word in words:
        assert word in done.err
    assert content.items() <= {path.name: path.read_bytes() for path in finished.iterdir()}.items()
    workshop.assert_clean()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["run"],
            "(or --servers SERVERS.YAML and --server NAME), or --resume DIR",
        ),
        (
            ["run", "no-folder/job.yaml"],
            "on which drives? There is no no-folder/array.yaml; give --array ARRAY.YAML, or --drives N",
        ),
        (
            ["run", "job.yaml", "--resume", "somewhere"],
            "of the options --engine, --trust, --stay and --json alone go with it: leave the others, and JOB.YAML, out",
        ),
        (
            ["run", "--array", "array.yaml", "--resume", "somewhere"],
            "of the options --engine, --trust, --stay and --json alone go with it: leave the others, and JOB.YAML, out",
        ),
        (
            ["run", "--tuner", "stannis", "--resume", "somewhere"],
            "of the options --engine, --trust, --stay and --json alone go with it: leave the others, and JOB.YAML, out",
        ),
        (["run", "--resume", "nowhere"], "nowhere: is no run directory"),
    ],
)
def test_a_command_that_is_not_clear_is_refused(csd_emu: Command, arguments: list[str], words: str) -> None:
    done = csd_emu(*arguments)
    assert done.code == 2
    assert words in done.err


@pytest.mark.usefixtures("_nothing_may_start")
def test_another_engine_is_refused(csd_emu: Command, finished: Path) -> None:
    done = csd_emu("run", "--resume", finished, "--engine", "qemu")
    assert done.code == 2
    assert "is on native and can only go on there; leave --engine out" in done.err


@pytest.mark.usefixtures("_nothing_may_start")
def test_a_run_directory_that_is_in_use_is_refused(csd_emu: Command, finished: Path) -> None:
    with RunDirectory(finished):
        done = csd_emu("run", "--resume", finished)
    assert done.code == 2
    assert "another csd-emu process works on this run" in done.err


@pytest.mark.long
def test_two_hosts_on_one_run_directory_are_refused(workshop: Workshop, csd_emu: Command) -> None:
    process = workshop.start(*workshop.job_arguments(**JOB | {"rounds": 500}))
    try:
        wait_until(workshop.rounds)
        done = csd_emu("run", "--resume", workshop.run_directory())
        assert done.code == 2
        assert "another csd-emu process works on this run" in done.err
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()
    workshop.assert_clean()


@pytest.mark.long
def test_a_checkpoint_that_does_not_fit_ends_the_run_with_what_it_needs(workshop: Workshop, csd_emu: Command) -> None:
    """A limit on the size of files, which works everywhere: 150 kB of weights do not fit into 100 kB."""
    limited = (
        "import resource, sys; from host.cli.main import main; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000,) * 2); "
        "sys.argv[0] = 'csd-emu'; main()"
    )
    command = [sys.executable, "-c", limited, *map(str, workshop.job_arguments(**JOB))]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, env=workshop.environment, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    directory = workshop.run_directory()
    assert f"{directory / 'checkpoint.safetensors'}: the checkpoint of round 1 cannot be written" in done.stderr
    assert "needs" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in directory.glob("checkpoint*")] == []
    workshop.assert_clean()
    assert csd_emu("run", "--resume", directory).code == 1


@pytest.fixture
def small_disk(workshop: Workshop) -> Iterator[Path]:
    """A file system of 40 MB."""
    folder = workshop.folder / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "none", folder], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill_up(path: Path, process: subprocess.Popen[str]) -> None:
    """Take all room on the disk of `path`, also what becomes free, until the process has ended."""
    with open(path, "wb", buffering=0) as stream:
        while process.poll() is None:
            with contextlib.suppress(OSError):
                stream.write(bytes(1 << 12))


@pytest.mark.long
def test_a_disk_that_fills_up_keeps_the_checkpoint_before_and_the_run_goes_on_once_there_is_room(
    workshop: Workshop, csd_emu: Command, small_disk: Path
) -> None:
    arguments = workshop.job_arguments(**JOB | {"rounds": 20})
    assert csd_emu(*arguments).code == 1
    process = workshop.start(*arguments[:-1], small_disk / "runs")
    wait_until(lambda: [*small_disk.glob("runs/*/checkpoint.safetensors")])
    fill_up(small_disk / "filler", process)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2, err
    (directory,) = (small_disk / "runs").iterdir()
    assert "Traceback" not in err
    assert f"csd-emu run --resume {directory}" in err.replace("\n", "")
    assert not (directory / "checkpoint.safetensors.partial").exists()
    workshop.assert_clean()
    (small_disk / "filler").unlink()
    done = csd_emu("run", "--resume", directory, "--json")
    assert done.code == 1, done.err
    assert weights(directory) == weights(workshop.run_directory())


@pytest.mark.long
def test_a_drive_that_is_frozen_in_a_round_and_thaws_takes_part_again(workshop: Workshop) -> None:
    """The watchdog ends its session; it redials by itself, and its answer to the old round enters no newer one."""
    process = workshop.start(*workshop.job_arguments(**JOB | {"rounds": 60, "epochs": 4, "watchdog": "8 s"}))
    wait_until(lambda: len(workshop.rounds()) >= 2)
    agent = workshop.agent("csd-01")
    agent.suspend()
    wait_until(lambda: any(record["lost"] for record in workshop.rounds()))
    agent.resume()
    wait_until(lambda: "rejoined" in whats(workshop, workshop.run_directory()))
    wait_until(lambda: workshop.rounds()[-1]["lost"] == [])
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    rounds = workshop.rounds()
    lost = [record["round"] for record in rounds if record["lost"]]
    assert lost == list(range(lost[0], lost[-1] + 1))
    after = next(record for record in rounds if record["round"] == lost[-1] + 1)
    assert [part["device"] for part in after["devices"]] == ["csd-00", "csd-01"]
    workshop.assert_clean()


@pytest.mark.long
def test_the_only_drive_cut_off_in_a_round_costs_no_round(workshop: Workshop) -> None:
    """Frozen beyond the watchdog, it is all that the round has; the host waits for it."""
    workshop.write("array.yaml", {"name": "lab", "engine": "native", "devices": [{"profile": "newport"}]})
    process = workshop.start(*workshop.job_arguments(**JOB | {"rounds": 6, "epochs": 4, "watchdog": "8 s"}))
    wait_until(lambda: len(workshop.rounds()) >= 2)
    agent = workshop.agent("csd-00")
    agent.suspend()
    wait_until(lambda: "lost" in whats(workshop, workshop.run_directory()))
    agent.resume()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    rounds = workshop.rounds()
    assert [record["round"] for record in rounds] == [1, 2, 3, 4, 5, 6]
    assert all(record["lost"] == [] for record in rounds)
    assert {"lost", "note", "rejoined"} <= set(whats(workshop, workshop.run_directory()))
    workshop.assert_clean()
