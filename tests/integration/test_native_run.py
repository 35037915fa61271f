"""`run` on the native engine, as a user's own process, from start to end."""

import http.client
import os
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from firmware_agent.common.units import SECONDS, parse_quantity
from host.core.records import EventKind, EventRecord, RoundRecord
from tests.support.commands import ARRAY, JOB, Done, Workshop, meanwhile, wait_until
from tests.support.machines import REQUIRE_VARIABLE
from tests.support.metrics import parse

PAINTED = True  # charts


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def decoded(directory: Path) -> list[RoundRecord | EventRecord]:
    lines = (directory / "records.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=RoundRecord | EventRecord) for line in lines]


@pytest.mark.long
def test_a_run_reaches_its_target_repeats_to_the_bit_and_leaves_only_its_run_directory(
    workshop: Workshop, csd_emu: Callable[..., Done]
) -> None:
    """Once as a process of its own, once in this one."""
    arguments = workshop.job_arguments()
    done = workshop.run(*arguments, "--json")
    assert done.code == 0, done.err
    assert done.err == ""
    summary = done.json("run")
    assert summary["reached"]
    assert summary["accuracy"] >= 0.95
    assert (summary["engine"], summary["clock"], summary["array"]) == ("native", "modelled", "lab")
    directory = Path(summary["run_directory"])
    assert directory == workshop.run_directory()
    check_run_directory(directory, summary)
    workshop.assert_clean()

    again = csd_emu(*arguments)
    assert again.code == 0, again.err
    assert f" {summary['accuracy']:.4f} after {summary['rounds']} rounds, target 0.950 reached" in again.out
    (other,) = set(workshop.runs.iterdir()) - {directory}
    assert str(other) in again.out
    assert len(again.out.splitlines()) >= summary["rounds"] + 4  # the table on a pipe: one line per round
    assert (other / "model.safetensors").read_bytes() == (directory / "model.safetensors").read_bytes()
    workshop.assert_clean()


def check_run_directory(directory: Path, summary: dict[str, Any]) -> None:
    names = {path.name for path in directory.iterdir()}
    assert names == {
        "array.yaml", "job.yaml", "versions.json", "records.jsonl", "checkpoint.safetensors", "summary.json",
        "model.safetensors", "trace.json", "report.html", "metrics.prom",
    }  # fmt: skip
    assert msgspec.json.decode((directory / "summary.json").read_bytes()) == summary
    records = decoded(directory)
    rounds = [record for record in records if isinstance(record, RoundRecord)]
    assert [record.round for record in rounds] == list(range(1, summary["rounds"] + 1))
    assert rounds[-1].accuracy == summary["accuracy"]
    assert sum(part.samples for record in rounds for part in record.devices) == summary["samples"]
    for record in rounds:
        assert [part.device for part in record.devices] == ["csd-00", "csd-01"]
        assert sum(part.samples for part in record.devices) == 2 * 1437
        assert record.lost == []
        assert all(part.sent_bytes > 100_000 and part.received_bytes > 100_000 for part in record.devices)
    versions = msgspec.json.decode((directory / "versions.json").read_bytes())
    assert set(versions["devices"]) == {"csd-00", "csd-01"}
    assert {"torch", "python", "machine"} <= set(versions["devices"]["csd-00"])


@pytest.mark.long
def test_counters_follow_the_records_and_a_missed_target_is_exit_code_1(workshop: Workshop) -> None:
    """Scraped all through a run, the counters are always those of some round's end."""
    port = free_port()
    workshop.write("array.yaml", ARRAY | {"host": {"metrics_port": port}})
    process = workshop.start(*workshop.job_arguments(target={"accuracy": 1.0}, rounds=4, epochs=1))
    scrapes = []
    while process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                scrapes.append(answer.read().decode())
        except (urllib.error.URLError, http.client.IncompleteRead, ConnectionError, TimeoutError):
            continue
    out, err = process.communicate()
    assert process.returncode == 1, err
    assert "target 1.000 missed" in out
    seen = [counted(text) for text in scrapes]
    totals = dict.fromkeys(("csd-00", "csd-01"), 0)
    allowed = {(), tuple(totals.items())}
    for record in decoded(workshop.run_directory()):
        if isinstance(record, RoundRecord):
            totals = {part.device: totals[part.device] + part.samples for part in record.devices}
            allowed.add(tuple(totals.items()))
    assert len(set(seen)) > 2
    assert set(seen) <= allowed
    assert seen[-1] == tuple(totals.items()), "the run ended before its last round was fetched"
    check_last_scrape(scrapes[-1], decoded(workshop.run_directory()))
    workshop.assert_clean()


def check_last_scrape(text: str, records: list[RoundRecord | EventRecord]) -> None:
    """It is of drives that were up to the end, and of the whole record."""
    metrics = parse(text)
    rounds = [record for record in records if isinstance(record, RoundRecord)]
    assert set(metrics["csd_device_up"].values()) == {1.0}
    assert sum(metrics["csd_energy_joules_total"].values()) == pytest.approx(sum(r.total_joules for r in rounds))
    array_seconds = sum(record.array_seconds for record in rounds)
    assert array_seconds > 0
    assert list(metrics["csd_device_seconds_total"].values()) == pytest.approx([array_seconds] * 3)
    compute = sum(part.device_seconds.total for record in rounds for part in record.devices)
    assert sum(metrics["csd_compute_seconds_total"].values()) == pytest.approx(compute)
    memory = {part.device: part.peak_memory_bytes for part in rounds[-1].devices}
    assert metrics["csd_memory_used_bytes"] == {(device,): count for device, count in memory.items()}
    assert min(memory.values()) > 50_000_000
    assert set(metrics["csd_boot_duration_seconds"]) == {("wall", "csd-00"), ("wall", "csd-01")}
    program = shutil.which("promtool")
    if program is None and os.environ.get(REQUIRE_VARIABLE) == "1":
        pytest.fail("promtool is missing; make setup-dev installs it with prometheus")
    if program is not None:
        lint = subprocess.run([program, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
        assert (lint.returncode, lint.stdout + lint.stderr) == (0, "")


@pytest.mark.long
def test_top_shows_a_run_in_progress_and_none_when_it_has_ended(workshop: Workshop) -> None:
    process = workshop.start(*workshop.job_arguments(target={"accuracy": 1.0}, rounds=500), "--json")
    wait_until(workshop.rounds)
    report = workshop.run("top", "--json").json("top")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert (report["array"], report["engine"]) == ("lab", "native")
    assert report["run_directory"] == str(workshop.run_directory())
    assert report["round"] >= 1
    assert [device["device"] for device in report["devices"]] == ["csd-00", "csd-01", "host"]
    assert all(device["records_per_device_second"] > 0 for device in report["devices"][:2])
    ended = workshop.run("top", "--once")
    assert ended.code == 2
    assert "no run is in progress" in ended.err
    workshop.assert_clean()


def counted(text: str) -> tuple[tuple[str, int], ...]:
    samples = parse(text).get("csd_train_samples_total", {})
    return tuple(sorted((device, int(value)) for (device,), value in samples.items()))


@pytest.mark.parametrize("fault", ["kill", pytest.param("suspend", marks=pytest.mark.long)])
def test_a_run_goes_on_without_an_agent_that_dies_or_hangs_and_records_it(
    workshop: Workshop, csd_emu: Callable[..., Done], fault: str
) -> None:
    """A hanging one is given up after the watchdog, which is generous in a user's job and short here."""

    def harm() -> None:
        wait_until(workshop.rounds)
        getattr(workshop.agent("csd-01"), fault)()

    watchdog = "5 s" if fault == "suspend" else "60 s"
    rounds = 6
    arguments = workshop.job_arguments(rounds=rounds, epochs=8, target={"accuracy": 1.0}, watchdog=watchdog)
    with meanwhile(harm):
        done = csd_emu(*arguments, "--json")
    assert done.code == 1, done.err
    records = decoded(workshop.run_directory())
    all_rounds = [record for record in records if isinstance(record, RoundRecord)]
    assert [record.round for record in all_rounds] == list(range(1, rounds + 1))
    assert all_rounds[0].lost == []
    assert all_rounds[-1].lost == ["csd-01"]
    assert [part.device for part in all_rounds[-1].devices] == ["csd-00"]
    events = [record for record in records if isinstance(record, EventRecord) and record.device == "csd-01"]
    # One that dies between two rounds was not asked for anything: it has left, and the next round misses it.
    assert EventKind.LEFT in {event.what for event in events}
    assert fault == "kill" or EventKind.LOST in {event.what for event in events}
    workshop.assert_clean()


@pytest.mark.long
def test_a_users_model_travels_to_the_drives(workshop: Workshop) -> None:
    workshop.write(
        "my_net.py",
        "from torch import nn\n"
        "def build(hidden):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))\n",
    )
    job = {"model": "my_net.py:build", "model_arguments": {"hidden": 32}, "target": {"accuracy": 0.85}}
    done = workshop.run(*workshop.job_arguments(**job), "--json")
    assert done.code == 0, done.err
    assert done.json("run")["model"] == "my_net.py:build"


def test_the_watchdog_of_the_example_is_generous() -> None:
    assert parse_quantity("10 min", SECONDS, "1 s") == 600
    assert "watchdog" not in JOB
