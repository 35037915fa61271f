"""Bad input: exit code 2, one clear message, nothing started, nothing left."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from csd_emu.util import qemu_tools as tools
from firmware_agent.common.errors import EnvironmentUnfit
from host.fleet import lifecycle
from tests.support.commands import ARRAY, JOB, Done, Workshop

Command = Callable[..., Done]
# libvirt's daemon outlives the object that started it on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


@pytest.fixture(autouse=True)
def _nothing_may_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        raise AssertionError("a device was started")

    monkeypatch.setattr("csd_emu.engines.native_engine.NativeEngine.start", start)


def assert_refused(done: Done, workshop: Workshop, *words: str) -> None:
    assert done.code == 2, done
    assert done.out == ""
    assert done.err.startswith("csd-emu: ")
    # A traceback is of the user's own code, with its file.
    assert "Traceback" not in done.err or "my_net.py" in done.err.partition("Traceback")[2]
    for word in words:
        assert word in done.err
    workshop.assert_clean()
    assert not workshop.runs.exists()


@pytest.mark.parametrize(
    ("array", "job", "words"),
    [
        ({"enginee": "native"}, {}, ["array.yaml: enginee: unknown key; did you mean 'engine'?"]),
        ({"memory": "2 s"}, {}, ["array.yaml: memory: '2 s' has the unit 's'"]),
        ({"devices": [{"profile": "newport", "count": 0}]}, {}, ["array.yaml: devices[0].count: "]),
        ({"devices": [{"profile": "newprot"}]}, {}, ["array.yaml: devices[0].profile: ", "newport"]),
        ({"name": "../x"}, {}, ["array.yaml: name: "]),
        ({}, {"round": 1}, ["job.yaml: round: unknown key; did you mean 'rounds'?"]),
        ({}, {"watchdog": 5.0}, ["job.yaml: watchdog: 5.0 is not a quantity", "write a number and a unit"]),
        ({}, {"learning_rate": -1}, ["job.yaml: learning_rate: "]),
        ({}, {"model": "digits_cn"}, ["model 'digits_cn' is not built in; did you mean 'digits_cnn'?"]),
        ({}, {"model": "my_net.py:build"}, ["my_net.py: cannot", "give a path from the job file's folder"][1:]),
        ({}, {"model": "torch.nn:Identity"}, ["model 'torch.nn:Identity' gives (1, 1, 8, 8)", "logits"]),
        ({}, {"model_arguments": {"num_classes": 3}}, ["gives (1, 3)", "needs (1, 10) logits"]),
        ({}, {"model_arguments": {"classes": 3}}, ["model 'digits_cnn': building it with {'classes': 3} failed"]),
        ({}, {"data": {"source": "digit"}}, ["data.source", "'digit' is not known; did you mean 'digits'?"]),
        ({}, {"data": {"source": "mnist"}}, ["data.source", "'mnist' is not known; there are: digits"]),
    ],
)
def test_a_wrong_file_is_refused_by_run_and_validate(
    workshop: Workshop, csd_emu: Command, array: dict[str, Any], job: dict[str, Any], words: list[str]
) -> None:
    workshop.write("array.yaml", ARRAY | array)
    assert_refused(csd_emu(*workshop.job_arguments(**job)), workshop, *words)
    assert_refused(csd_emu("validate", workshop.job, "--array", workshop.array, "--build"), workshop, *words)
    assert_refused(csd_emu("up", workshop.array, "--job", workshop.job, "--json"), workshop, *words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("name: a\nname: b\n", ["'name' occurs twice"]),
        ("name: [", ["is no valid YAML"]),
        ("", ["must be a mapping"]),
        (None, ["cannot be read", "give the path of a YAML file"]),
    ],
)
def test_a_file_that_is_no_configuration(
    workshop: Workshop, csd_emu: Command, content: str | None, words: list[str]
) -> None:
    if content is None:
        workshop.array.unlink()
    else:
        workshop.write("array.yaml", content)
    assert_refused(csd_emu("up", workshop.array), workshop, "array.yaml: ", *words)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "def build():\n    raise RuntimeError('no such weights')\n",
            ["building it with {} failed", "no such weights"],
        ),
        ("def build():\n    return 5\n", ["returned int, not a torch.nn.Module"]),
        ("import not_there\n", ["cannot be imported", "not_there"]),
        ("def biuld():\n    pass\n", ["cannot be imported", "build"]),
        ("from torch import nn\nbuild = lambda: nn.Linear(5, 10)\n", ["does not take digits's images (1, 8, 8)"]),
    ],
)
def test_a_users_model_that_cannot_work(workshop: Workshop, csd_emu: Command, source: str, words: list[str]) -> None:
    workshop.write("my_net.py", source)
    done = csd_emu(*workshop.job_arguments(model="my_net.py:build"))
    assert_refused(done, workshop, "model 'my_net.py:build'", *words)


def test_more_drives_than_records(workshop: Workshop, csd_emu: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("csd_emu.config.array_file.MAX_DEVICES", 4096)
    workshop.write("array.yaml", ARRAY | {"devices": [{"profile": "newport", "count": 1024}] * 2})
    assert_refused(
        csd_emu(*workshop.job_arguments()), workshop, "1437 records cannot fill 2048 shards; use fewer devices"
    )


def test_an_engine_that_is_not_known_is_a_usage_error(workshop: Workshop, csd_emu: Command) -> None:
    done = csd_emu(*workshop.job_arguments(), "--engine", "kvm")
    assert done.code == 2
    assert "kvm" in done.err
    workshop.assert_clean()


@pytest.mark.parametrize("key", ["port", "metrics_port"])
def test_a_port_in_use(workshop: Workshop, csd_emu: Command, key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        workshop.write("array.yaml", ARRAY | {"host": {key: port}})
        done = csd_emu(*workshop.job_arguments())
    assert_refused_after_a_stage(
        done, workshop, f"host.{key}", f"cannot listen on 127.0.0.1:{port}", "free it, or set another"
    )


def assert_refused_after_a_stage(done: Done, workshop: Workshop, *words: str) -> None:
    """As `assert_refused`, but some work without devices was begun and shown."""
    message = done.err[done.err.index("csd-emu: ") :]
    assert_refused(Done(done.code, done.out, message), workshop, *words)


def test_no_qemu(workshop: Workshop, csd_emu: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("libvirt")
    monkeypatch.setenv("PATH", str(workshop.folder))
    tools.find_qemu.cache_clear()
    try:
        for command in (["up", workshop.array], ["validate", workshop.array, "--dry-run"], workshop.job_arguments()):
            done = csd_emu(*command, "--engine", "qemu")
            assert_refused(
                done, workshop, "qemu-system-aarch64 is not installed; run scripts/install-system-packages", "native"
            )
    finally:
        tools.find_qemu.cache_clear()


def test_a_qemu_that_is_too_old(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, version in (("qemu-system-aarch64", "QEMU emulator version 7.2.17 (Debian)"), ("qemu-img", "")):
        tool = workshop.write(name, f"#!/bin/sh\necho '{version}'\n")
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{workshop.folder}:{os.defpath}")
    tools.find_qemu.cache_clear()
    try:
        with pytest.raises(EnvironmentUnfit, match=r"7\.2\.17.*csd-emu needs 8\.2 or newer; run scripts"):
            tools.find_qemu()
    finally:
        tools.find_qemu.cache_clear()


def test_no_libvirt_daemon(workshop: Workshop, csd_emu: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = pytest.importorskip("csd_emu.engines.qemu.libvirt_daemon")
    if shutil.which("qemu-system-aarch64") is None:
        pytest.skip("QEMU is missing, which is found out first")
    monkeypatch.setattr(daemon, "_DAEMONS", {"no-such-daemon": "socket"})
    done = csd_emu("up", workshop.array, "--engine", "qemu")
    assert_refused(done, workshop, "no-such-daemon", "is not installed; run scripts/install-system-packages")


def test_a_hypervisor_that_cannot_be_reached(
    workshop: Workshop, csd_emu: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = pytest.importorskip("csd_emu.engines.qemu.qemu_engine")
    if shutil.which("qemu-system-aarch64") is None:
        pytest.skip("QEMU is missing, which is found out first")
    uri = f"qemu+unix:///session?socket={workshop.folder}/nobody"
    workshop.write("array.yaml", ARRAY | {"engine": "qemu", "hypervisors": [uri]})
    monkeypatch.setattr(engine.ImageStore, "ensure", lambda *_, **__: pytest.fail("an image was built"))
    done = csd_emu("up", workshop.array)
    message = done.err[done.err.index("csd-emu: ") :]
    assert done.code == 2
    assert f"hypervisors: {uri} cannot be reached" in message
    assert "correct the URI" in message
    assert workshop.arrays() == []


def test_no_space(workshop: Workshop, csd_emu: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "shard.tar")

    monkeypatch.setattr(lifecycle, "write_shards", full)
    done = csd_emu("up", workshop.array)
    message = done.err[done.err.index("csd-emu: ") :] if "csd-emu: " in done.err else done.err
    assert_refused(Done(done.code, done.out, message), workshop, "No space left on device", "free")


def test_a_place_for_runs_that_cannot_be_used(workshop: Workshop, csd_emu: Command) -> None:
    (workshop.folder / "runs").write_text("")
    done = csd_emu(*workshop.job_arguments())
    message = done.err[done.err.index("csd-emu: ") :]
    assert done.code == 2
    assert "no run directory can be made" in message
    workshop.assert_clean()


def test_a_home_that_cannot_be_used(workshop: Workshop, csd_emu: Command) -> None:
    workshop.home.write_text("")
    done = csd_emu("up", workshop.array)
    assert done.code == 2
    assert "cannot be used" in done.err
    assert "set CSD_EMU_HOME" in done.err


@pytest.mark.parametrize("name", ["nothing", "../etc", "Lab", "a/b", ""])
def test_arrays_that_are_not_there(workshop: Workshop, csd_emu: Command, name: str) -> None:
    outside = workshop.folder / "precious"
    outside.write_text("keep")
    assert_refused(csd_emu("down", name), workshop, "is not up; csd-emu status lists arrays")
    done = csd_emu("clean", name, "--json")
    if name == "nothing":
        assert done.json("clean")["ended"] == {"nothing": []}
    else:
        assert done.code == 2
        assert "Traceback" not in done.err
    assert workshop.arrays() == []
    assert outside.read_text() == "keep"


@pytest.mark.parametrize("content", ["", "{", "{}", '{"config": 5}', "\udcff"])
def test_a_damaged_state_file_is_named_with_the_remedy_which_works(
    workshop: Workshop, csd_emu: Command, content: str
) -> None:
    folder = workshop.home / "state" / "arrays" / "lab"
    folder.mkdir(parents=True)
    (folder / "array.json").write_text(content, errors="surrogateescape")
    (status,) = csd_emu("status", "--json").json("status")["arrays"]
    assert (status["array"], status["state"]) == ("lab", "unreadable")
    for command in (["up", workshop.array], workshop.job_arguments()):
        done = csd_emu(*command)
        assert done.code == 2
        assert "array.json: is damaged, or cannot be read" in done.err
        assert "run csd-emu clean lab" in done.err
    assert csd_emu("clean", "lab").code == 0
    assert workshop.arrays() == []


def test_a_bench_that_is_not_known(workshop: Workshop, csd_emu: Command) -> None:
    pytest.importorskip("libvirt")
    assert_refused(csd_emu("bench", "speed"), workshop, "bench 'speed' is not known; choose one of: repeatability")


def test_the_same_from_a_shell(workshop: Workshop) -> None:
    workshop.write("array.yaml", ARRAY | {"enginee": "native"})
    assert_refused(workshop.run(*workshop.job_arguments()), workshop, f"{workshop.array}: enginee: unknown key")


def test_a_missing_argument_is_a_usage_error(workshop: Workshop, csd_emu: Command) -> None:
    workshop.array.unlink()
    done = csd_emu("run", workshop.job)
    assert done.code == 2
    assert "--array" in done.err
    assert JOB["rounds"] == 12
    assert not Path(workshop.home).exists()
