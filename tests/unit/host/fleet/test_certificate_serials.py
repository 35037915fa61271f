"""Records of certificates: whole or not there, bounded, one newest serial for each drive."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit
from host.fleet import enrolment_authority as module
from host.fleet.enrolment_authority import FILE, REVOKED, Serials

SERIAL = st.integers(1, (1 << 159) - 1)


@given(st.lists(st.tuples(st.sampled_from(["record", "revoke", "adopt"]), st.sampled_from("ab"), SERIAL), max_size=12))
def test_the_newest_counts_and_only_a_drive_without_a_record_is_adopted(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int]]
) -> None:
    serials, known = Serials(tmp_path_factory.mktemp("lab")), dict[str, str]()
    for what, drive, serial in steps:
        if what == "adopt":
            assert serials.adopt(drive, serial) == (drive not in known)
            known.setdefault(drive, f"{serial:x}")
        elif what == "record":
            serials.record(drive, serial)
            known[drive] = f"{serial:x}"
        else:
            assert serials.revoke(drive) == (known.get(drive) != REVOKED)
            known[drive] = REVOKED
        assert [serials.find(name) for name in "ab"] == [known.get(name) for name in "ab"]


def test_of_two_that_come_at_once_one_is_adopted(tmp_path: Path) -> None:
    for round_ in range(20):
        won: list[int] = []

        def come(number: int, drive: str, won: list[int]) -> None:
            if Serials(tmp_path).adopt(drive, number):
                won.append(number)

        threads = [threading.Thread(target=come, args=(number, f"d{round_}", won)) for number in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [f"{number:x}" for number in won] == [Serials(tmp_path).find(f"d{round_}")]


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", '{"drives":{"a":5}}', '{"drives":{"a":"XYZ"}}', '{"drives":{},"more":1}', " " * (5 << 20)],
)
def test_records_that_are_damaged_are_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    serials = Serials(tmp_path)
    for use in (lambda: serials.find("a"), lambda: serials.record("a", 1), lambda: serials.adopt("a", 1)):
        with pytest.raises(ConfigurationError, match=r"serials\.json: these records are damaged .*--renew"):
            use()
    assert (tmp_path / FILE).read_text() == content


def test_they_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DRIVES", 2)
    serials = Serials(tmp_path)
    for drive in "ab":
        serials.record(drive, 1)
    with pytest.raises(EnvironmentUnfit, match="2 drives already"):
        serials.record("c", 1)
    serials.record("a", 2)
    assert serials.find("a") == "2"


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentUnfit, match=r"serials\.json: cannot be written"):
        Serials(tmp_path / "file" / "lab").record("a", 1)
