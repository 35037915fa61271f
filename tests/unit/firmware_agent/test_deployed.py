"""The agent on a real drive: whom it serves, what it says of itself, and when it ends a session."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import msgspec
import pytest

from firmware_agent import deployed
from firmware_agent.common.errors import ConfigurationError, ShardError
from firmware_agent.common.identity import Identity, write_identity
from firmware_agent.deployed import AgentReport, HostConnection, find_identity, serve_deployed, sign

TICKET = Identity("lab", "csd-01", 3, "10.0.0.1:5000", "wall", 0.0, b"e" * 64, "ca", "certificate", "key")
OWN = Identity("deployment", "csd-01", 0, "", "wall", 0.0, b"o" * 64, "own ca", "own certificate", "own key")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("slot", "enrolment", "state"):
        (tmp_path / name).mkdir()
    return tmp_path


def lend(folder: Path, identity: Identity, place: str = "slot") -> Path:
    path = folder / place / "identity.tar"
    write_identity(path, identity)
    return path


def said(folder: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in (folder / "state/agent").read_text().splitlines())


def test_without_an_identity_and_with_an_enrolment_that_names_no_host_it_waits(folder: Path) -> None:
    assert find_identity(folder) is None
    lend(folder, OWN, "enrolment")
    assert find_identity(folder) is None


def test_the_slot_goes_before_the_enrolment(folder: Path) -> None:
    lend(folder, msgspec.structs.replace(OWN, host_address="10.0.0.2:1"), "enrolment")
    own = find_identity(folder)
    assert own is not None
    assert own.array == "deployment"
    lend(folder, TICKET)
    assert find_identity(folder) == TICKET


def test_a_ticket_without_a_certificate_takes_that_of_the_enrolment(folder: Path) -> None:
    bare = msgspec.structs.replace(TICKET, ca_pem="", certificate_pem="", key_pem="")
    lend(folder, bare)
    with pytest.raises(ConfigurationError, match="run csd-emu deploy enrol"):
        find_identity(folder)
    lend(folder, OWN, "enrolment")
    found = find_identity(folder)
    assert found is not None
    assert (found.ca_pem, found.certificate_pem, found.key_pem) == ("own ca", "own certificate", "own key")
    assert (found.array, found.incarnation, found.host_address) == ("lab", 3, "10.0.0.1:5000")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
@pytest.mark.parametrize("place", ["slot", "enrolment"])
def test_a_key_that_others_can_read_is_not_used(folder: Path, place: str, mode: int) -> None:
    lend(folder, TICKET)
    lend(folder, OWN, "enrolment")
    (folder / place / "identity.tar").chmod(mode)
    with pytest.raises(ConfigurationError, match="others can read; set its mode to 600"):
        find_identity(folder)


def test_a_damaged_ticket_is_an_error(folder: Path) -> None:
    path = lend(folder, TICKET)
    path.write_bytes(b"nonsense")
    with pytest.raises(ShardError):
        find_identity(folder)


def test_its_sign_changes_when_a_ticket_comes_is_replaced_or_goes(folder: Path) -> None:
    seen = [sign(folder)]
    path = lend(folder, TICKET)
    seen.append(sign(folder))
    lend(folder, TICKET)  # by rename: another file
    seen.append(sign(folder))
    lend(folder, OWN, "enrolment")
    seen.append(sign(folder))
    path.unlink()
    seen.append(sign(folder))
    assert len(set(seen)) == len(seen)


def test_its_report_is_one_line_for_each_fact(folder: Path) -> None:
    (folder / "versions/0123").mkdir(parents=True)
    (folder / "current").symlink_to("versions/0123")
    AgentReport(folder).write("failed", TICKET, "two\nlines   of text")
    assert said(folder) == {
        **{"pid": str(os.getpid()), "version": "0123", "state": "failed", "array": "lab", "device": "csd-01"},
        **{"incarnation": "3", "what": "two lines of text"},
    }


class FakeSession:
    """Knows whether it was cancelled."""

    def __init__(self, identity: Identity) -> None:
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()


@pytest.mark.parametrize("why", ["changed", "stopped"])
def test_a_session_ends_when_the_identity_changes_or_the_agent_is_stopped(
    monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr(deployed, "HostSession", FakeSession)
    monkeypatch.setattr(deployed, "_POLL_SECONDS", 0.001)
    changed, stop = threading.Event(), threading.Event()
    line = HostConnection(changed.is_set, stop)
    with line.watched():
        session = line.dial(TICKET)
        assert isinstance(session, FakeSession)
        assert not session.cancelled.is_set()
        (changed if why == "changed" else stop).set()
        assert session.cancelled.wait(10.0)
        assert line.over.is_set()
        late = line.dial(TICKET)
        assert isinstance(late, FakeSession)
        assert late.cancelled.is_set()


def test_what_is_wrong_with_one_identity_is_said_until_another_one_comes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployed, "_POLL_SECONDS", 0.001)
    states: list[str] = []
    stop = threading.Event()

    def note(self: AgentReport, state: str, identity: Identity | None = None, what: str = "") -> None:
        states.append(state)
        if state == "failed":
            assert "run csd-emu deploy enrol" in what
            (folder / "slot/identity.tar").unlink()
        elif len(states) == 1:
            lend(folder, msgspec.structs.replace(TICKET, certificate_pem=""))
        else:
            stop.set()

    monkeypatch.setattr(AgentReport, "write", note)
    serve_deployed(folder, stop)
    assert states == ["waiting", "failed", "waiting"]
