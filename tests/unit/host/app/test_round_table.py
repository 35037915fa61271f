"""What a person sees of a run's rounds."""

import math

import msgspec
import pytest

from host.app.round_table import RoundTable
from host.core import console
from host.core.console import print_summary
from host.core.records import EventKind, EventRecord, RetuneRecord
from host.core.summary import SYNC, summarise
from host.monitoring.decision_text import describe_batches
from host.monitoring.run_listener import show_round
from tests.support.records import array_rounds, with_bands
from tests.support.sync_records import SyncRun
from tests.unit.host.core.test_summary import FACTS


@pytest.fixture(autouse=True)
def pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output goes to a pipe, wherever the tests are started."""
    monkeypatch.setattr(console.console, "_force_terminal", False)


def test_plain_lines_of_a_synchronous_run(capsys: pytest.CaptureFixture[str]) -> None:
    rounds = SyncRun(steps=100).make()
    with RoundTable("counted+modelled", mode=SYNC) as table:
        for record in rounds:
            show_round([table], record)
    header, first, retune, second = capsys.readouterr().out.splitlines()  # type: ignore[assignment]
    assert header.split()[:5] == ["round", "accuracy", "loss", "steps", "batch"]
    assert "records/array s (counted+modelled)" in header
    assert first.split()[3:5] == ["50", "642"]
    assert retune == "from step 64: csd-01 32 -> 15 (csd-01 slower since step 60)"
    assert second.split()[3:5] == ["50", "625"]
    assert second.split()[7] == "1"
    assert len({len(line) for line in (header, first, second)}) == 1


def test_seconds_and_joules_stand_with_their_bands(capsys: pytest.CaptureFixture[str]) -> None:
    record = with_bands(array_rounds(1, ["csd-00"])[0])
    with RoundTable("counted") as table:
        table.add_round(record)
    shown = capsys.readouterr().out
    assert f"{record.array_seconds:.3f} ({record.array_seconds / 2:.3g} to {record.array_seconds * 2:.3g})" in shown
    assert f"{record.total_joules:.0f} ({record.total_joules / 2:.3g} to {record.total_joules * 2:.3g})" in shown
    print_summary(summarise([record], **FACTS))
    ended = " ".join(capsys.readouterr().out.split())
    assert (
        f"{record.array_seconds:.2f} ({record.array_seconds / 2:.3g} to {record.array_seconds * 2:.3g}) (counted"
        in ended
    )
    assert "in brackets with the profiles' figures at either end of their bands" in ended


def test_where_no_classes_are_predicted_the_summary_has_the_loss(capsys: pytest.CaptureFixture[str]) -> None:
    record = msgspec.structs.replace(array_rounds(1, ["csd-00"])[0], test_loss=0.25)
    for accuracy, row in (
        (0.5, "accuracy 0.5000 after 1 rounds"),
        (math.nan, "loss on held-out records 0.2500 after 1"),
    ):
        print_summary(summarise([msgspec.structs.replace(record, accuracy=accuracy)], **FACTS))
        shown = " ".join(capsys.readouterr().out.split())
        assert (row in shown, "accuracy" in shown) == (True, accuracy == 0.5)


def test_what_a_file_says_is_no_markup_in_the_summary(capsys: pytest.CaptureFixture[str]) -> None:
    said = msgspec.structs.replace(
        summarise(array_rounds(1, ["csd-00"]), **FACTS),
        refusals={"csd[/link]": 1},
        clock="[red]x[/]",
        run_directory="[/]",
    )
    print_summary(said)
    shown = capsys.readouterr().out
    assert "csd[/link] 1" in shown
    assert "[red]x[/]" in shown
    assert "run directory              [/]\n" in shown


def test_plain_lines_of_a_federated_run(capsys: pytest.CaptureFixture[str]) -> None:
    with RoundTable("counted") as table:
        table.add_round(array_rounds(1, ["csd-00"])[0])
    header, row = capsys.readouterr().out.splitlines()
    assert "drives" in header
    assert "steps" not in header
    assert len(header) == len(row)


def test_what_was_not_taken_of_a_drive_is_said_as_it_happens(capsys: pytest.CaptureFixture[str]) -> None:
    with RoundTable("counted") as table:
        for what in EventKind:
            table.add_event(EventRecord("csd-01", what, "\x1b[2Jwhy"))
        table.add_event(EventRecord("csd-01", EventKind.REJECTED, "one of too many"), listed=False)
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["rejected", "set aside", "diverging"]
    assert "\x1b" not in "".join(lines)


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with RoundTable("counted", quiet=True, mode=SYNC) as table:
        table.add_retune(RetuneRecord(step=2, reason="r", before={"a": 1}, after={"a": 2}))
        table.add_round(SyncRun(steps=2).make()[0])
    assert capsys.readouterr().out == ""


def test_many_changes_are_shortened_and_devices_that_come_or_go_are_named() -> None:
    before = {f"csd-{number:02d}": 32 for number in range(6)}
    retune = RetuneRecord(step=2, reason="", before=before, after=dict.fromkeys(before, 16))
    assert describe_batches(retune).endswith("csd-03 32 -> 16 and 2 more")
    assert describe_batches(RetuneRecord(step=2, reason="", before={"a": 4}, after={"b": 3})) == "a 4 -> 0, b 0 -> 3"
    assert describe_batches(RetuneRecord(step=2, reason="", before={"a": 4}, after={"a": 4})) == "no batch changes"


def test_the_summary_names_steps_and_figures_per_record(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(summarise(SyncRun().make(), **FACTS))
    rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines() if line.strip())
    shown = {key: value.strip() for key, value in rows.items()}
    assert shown["synchronous steps"] == "200, batch sizes retuned 4 times"
    assert shown["records per array second"].endswith("(counted+modelled)")
    assert shown["energy per record"] == "0.1388 J"
    assert shown["bytes over the link"].endswith("2.1 kB per record")
    print_summary(summarise(array_rounds(2, ["csd-00"]), **FACTS))
    assert "synchronous" not in capsys.readouterr().out
