"""Reading run directories: finished, killed half-way, resumed, damaged."""

import math
import tracemalloc
from pathlib import Path

import pytest

from firmware_agent.common.errors import ConfigurationError
from host.core.records import EventKind, EventRecord
from host.monitoring.report.load_run import load_run
from tests.support.records import array_rounds, write_run

NAMES = ["csd-00", "csd-01", "csd-02"]


def test_everything_is_read_back(tmp_path: Path) -> None:
    rounds, event = array_rounds(3, NAMES), EventRecord("csd-00", EventKind.REJOINED, "incarnation 2", 1.5, 0.5)
    run = load_run(write_run(tmp_path, [rounds[0], event, *rounds[1:]]))
    assert run.rounds == rounds
    assert run.events == [event]
    assert run.summary is None
    assert list(run.devices.items()) == [(name, "newport") for name in NAMES]
    assert run.host is not None
    assert run.host.name == "xeon-4108"
    assert run.drive_profile("csd-01") == run.profiles["newport"]
    assert run.drive_profile("csd-77") is None
    link = run.link()
    assert link is not None
    assert (link.bytes_per_second, link.shared) == (run.host.link_bytes_per_second.value, True)


def test_the_array_files_link_wins_over_the_hosts(tmp_path: Path) -> None:
    link = load_run(write_run(tmp_path, [], array={"link": {"bandwidth": "1 GB/s", "shared": False}})).link()
    assert link is not None
    assert (link.bytes_per_second, link.shared) == (1e9, False)


def test_losses_that_are_no_numbers_come_back(tmp_path: Path) -> None:
    (record,) = load_run(write_run(tmp_path, array_rounds(1, NAMES, test_loss=math.nan, train_loss=math.inf))).rounds
    assert math.isnan(record.test_loss)
    assert math.isnan(record.train_loss)  # JSON has neither
    assert record.accuracy > 0
    assert record.machine_joules is None  # not measured, which is another null


def test_a_line_cut_short_is_left_out_and_said(tmp_path: Path) -> None:
    rounds = array_rounds(2, NAMES)
    path = write_run(tmp_path, rounds) / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    run = load_run(tmp_path)
    assert run.rounds == rounds[:1]
    assert any("cut short" in note for note in run.notes)


def test_rounds_done_again_after_a_resume_replace_those_of_before(tmp_path: Path) -> None:
    before, again = array_rounds(5, NAMES), array_rounds(4, NAMES, accuracy=0.5)
    run = load_run(write_run(tmp_path, [*before, *again[2:]]))
    assert [record.round for record in run.rounds] == [1, 2, 3, 4]
    assert run.rounds == [*before[:2], *again[2:]]


def test_a_damaged_summary_is_said_and_left_out(tmp_path: Path) -> None:
    write_run(tmp_path, array_rounds(1, NAMES))
    (tmp_path / "summary.json").write_text('{"array": "lab", ')
    run = load_run(tmp_path)
    assert run.summary is None
    assert any("summary.json is damaged" in note for note in run.notes)


def test_a_damaged_file_is_named_with_the_remedy(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name, content, message in [
        ("records.jsonl", b'{"kind":"round"}\n', "records.jsonl: line 1 is no record"),
        ("records.jsonl", b"\xff\xfe\n", "records.jsonl: line 1 is no record"),
        ("records.jsonl", b'{"kind":"dream"}\n', "line 1"),
        ("records.jsonl", b"[" * 100_000 + b"\n", "line 1"),
        ("records.jsonl", b"\n", "line 1"),
        ("array.yaml", b"name: [", "array.yaml: is damaged"),
        ("array.yaml", b"- 1", "array.yaml: is damaged"),
        ("array.yaml", b"devices: [{coutn: 1}]", "array.yaml: devices: is damaged"),
        ("array.yaml", b"devices: 7", "array.yaml: devices: is damaged"),
        ("job.yaml", b"\xff", "job.yaml: is damaged"),
        ("versions.json", b"{", "versions.json: is damaged"),
        ("versions.json", b'{"profiles": {"newport": {"cores": 4}}}', "versions.json: profiles: is damaged"),
    ]:
        with subtests.test(name=name, content=content, message=message):
            write_run(tmp_path, array_rounds(1, NAMES))
            (tmp_path / name).write_bytes(content)
            with pytest.raises(ConfigurationError, match=message):
                load_run(tmp_path)


@pytest.mark.parametrize(
    "devices",
    [
        "[{profile: newport, count: 9007199254740992}]",
        "[{profile: newport, count: 1.0e+300}]",
        "[{profile: newport, count: .inf}]",
        "[{profile: newport, count: 1000000}, {profile: newport, count: -1000000}]",
        f"[{{profile: newport, count: 30000, name: {'x' * 60_000}}}]",
    ],
    ids=["huge", "huge number", "infinite", "huge and negative", "long name"],
)
def test_an_array_of_more_devices_than_there_can_be_takes_no_memory(devices: str, tmp_path: Path) -> None:
    write_run(tmp_path, array_rounds(1, NAMES))
    (tmp_path / "array.yaml").write_text(f"devices: {devices}")
    tracemalloc.start()
    try:
        with pytest.raises(ConfigurationError, match=r"array\.yaml: devices: is damaged"):
            load_run(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_folder_that_is_no_run_directory_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ConfigurationError, match="is no run directory"):
            load_run(path)
