"""A verb on many drives: order, jobs, failures, rolling; with shells that are no connections."""

import contextlib
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.engines.remote.inventory import DriveEntry, Inventory
from csd_emu.engines.remote.shell import CommandResult, Shell
from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from firmware_agent.common.errors import ConfigurationError, DriveUnfit, DriveUnreachable
from host.deploy import run_verb as run
from host.deploy.run_verb import DeployRequest, Limits, choose_drives, deploy, read_seconds, run_verb
from host.deploy.verb_protocol import (
    VERBS,
    DeployReport,
    DriveSite,
    VerbOptions,
    VerbOutcome,
    VerbResult,
    exit_code,
    find_verb,
)
from tests.support.drives import FakeShell, entries
from tests.support.examples import examples


class Board:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.drives = 0
        self.finished: list[str] = []

    def begin(self, drives: int) -> None:
        self.drives = drives

    def show(self, drive: str, what: str, share: float | None) -> None:
        pass

    def finish(self, outcome: VerbOutcome) -> None:
        self.finished.append(outcome.drive)


class Lab:
    """Connects to drives, some of which cannot be reached; knows how many connections were open at one time."""

    def __init__(self, unreachable: frozenset[str] = frozenset()) -> None:
        self.unreachable = unreachable
        self.peak = 0
        self.shells: list[FakeShell] = []
        self._open = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def connect(self, drive: DriveEntry, deadline: Deadline) -> Any:
        if drive.name in self.unreachable:
            raise DriveUnreachable(f"drive {drive.name}: nobody is there; switch it on")
        shell = FakeShell(drive, lambda command: CommandResult(0, command, ""))
        with self._lock:
            self.shells.append(shell)
            self._open += 1
            self.peak = max(self.peak, self._open)
        try:
            yield shell
        finally:
            with self._lock:
                self._open -= 1


def done(site: DriveSite) -> VerbOutcome:
    site.show("work", 0.5)
    return VerbOutcome(site.drive.name, VerbResult.DONE, "done")


@settings(max_examples=examples(30))
@given(st.integers(1, 12), st.integers(1, 5), st.frozensets(st.integers(0, 11)), st.frozensets(st.integers(0, 11)))
def test_every_drive_has_one_outcome_in_order_and_only_the_broken_ones_fail(
    count: int, jobs: int, away: frozenset[int], broken: frozenset[int]
) -> None:
    def verb(site: DriveSite) -> VerbOutcome:
        if int(site.drive.name[-2:]) in broken:
            raise DriveUnfit(f"drive {site.drive.name}: is broken;\nmend it")
        return done(site)

    lab, board, drives = Lab(frozenset(f"csd-{number:02d}" for number in away)), Board(), entries(count)
    outcomes = run_verb(drives, verb, Limits(jobs, 60.0), board, lab.connect)
    assert [outcome.drive for outcome in outcomes] == [drive.name for drive in drives]
    failed = {outcome.drive for outcome in outcomes if outcome.result is VerbResult.FAILED}
    assert failed == {f"csd-{number:02d}" for number in away | broken if number < count}
    assert all(("mend it" in one.what or "switch it on" in one.what) == (one.drive in failed) for one in outcomes)
    assert not any("\n" in one.what or one.drive in one.what for one in outcomes)
    assert lab.peak <= jobs
    assert (board.drives, sorted(board.finished)) == (count, [drive.name for drive in drives])


def test_as_many_as_jobs_really_work_at_one_time() -> None:
    lab, meet = Lab(), threading.Barrier(3, timeout=30.0)

    def verb(site: DriveSite) -> VerbOutcome:
        meet.wait()
        return done(site)

    run_verb(entries(6), verb, Limits(3, 60.0), Board(), lab.connect)
    assert lab.peak == 3


@given(st.integers(1, 9), st.integers(1, 3), st.integers(0, 8))
def test_rolling_stops_after_the_batch_in_which_one_failed(count: int, batch: int, bad: int) -> None:
    def verb(site: DriveSite) -> VerbOutcome:
        if site.drive.name == f"csd-{bad:02d}":
            raise DriveUnfit("is broken; mend it")
        return done(site)

    outcomes = run_verb(entries(count), verb, Limits(4, 60.0, batch=batch), Board(), Lab().connect)
    begun = count if bad >= count else (bad // batch + 1) * batch
    for number, outcome in enumerate(outcomes):
        expected = VerbResult.FAILED if number == bad else VerbResult.DONE if number < begun else VerbResult.SKIPPED
        assert outcome.result is expected
    report = DeployReport("lab", "upgrade", False, outcomes, 1.0)
    assert exit_code(report) == (1 if bad < count else 0)


def test_an_error_that_nobody_expects_is_one_drives_alone_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    def verb(site: DriveSite) -> VerbOutcome:
        if site.drive.name == "csd-01":
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "a\nbug")
        return done(site)

    outcomes = run_verb(entries(3), verb, Limits(1, 60.0), Board(), Lab().connect)
    assert [outcome.result for outcome in outcomes] == [VerbResult.DONE, VerbResult.FAILED, VerbResult.DONE]
    assert "UnicodeDecodeError" in outcomes[1].what
    assert "\n" not in outcomes[1].what
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_ctrl_c_closes_open_connections_and_begins_no_other_drive() -> None:
    lab, main = Lab(), threading.main_thread().ident
    assert main is not None

    def verb(site: DriveSite) -> VerbOutcome:
        assert isinstance(site.shell, FakeShell)
        signal.pthread_kill(main, signal.SIGINT)
        assert site.shell.closed.wait(30.0)
        raise DriveUnreachable("the connection broke; try again")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_verb(entries(5), verb, Limits(1, 60.0), Board(), lab.connect)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(lab.shells) == 1
    assert lab.shells[0].closed.is_set()


INVENTORY = Inventory.model_validate(
    {
        "name": "lab",
        "groups": {"left": {}, "right": {}, "none": {}},
        "drives": {
            "csd-00": {"groups": ["left"]},
            "csd-01": {"groups": ["right"]},
            "csd-02": {"groups": ["left", "right"]},
            "csd-03": {},
        },
    }
)


@pytest.mark.parametrize(
    ("names", "groups", "chosen"),
    [
        ([], [], [0, 1, 2, 3]),
        (["csd-03", "csd-00"], [], [0, 3]),
        ([], ["left"], [0, 2]),
        (["csd-03"], ["right"], [1, 2, 3]),
    ],
)
def test_drives_are_chosen_by_name_or_group(names: list[str], groups: list[str], chosen: list[int]) -> None:
    drives = choose_drives(INVENTORY, names, groups)
    assert [drive.name for drive in drives] == [f"csd-{number:02d}" for number in chosen]


@pytest.mark.parametrize(
    ("names", "groups", "words"),
    [
        (["csd-0"], [], "no drive 'csd-0'; did you mean 'csd-0"),
        (["x"], [], "there are: csd-00, csd-01"),
        ([], ["lef"], "no group 'lef'; did you mean 'left'"),
        ([], ["none"], "no drive is in none"),
    ],
)
def test_a_wrong_name_is_refused(names: list[str], groups: list[str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words.replace("[", r"\[")):
        choose_drives(INVENTORY, names, groups)


def test_verbs_and_their_options_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="no verb 'prob'; did you mean 'probe'"):
        find_verb("prob", VerbOptions())
    with pytest.raises(ConfigurationError, match=r"choose one of: .*probe"):
        find_verb("zzz", VerbOptions())
    with pytest.raises(ConfigurationError, match="deploy probe: takes no --lines"):
        find_verb("probe", VerbOptions(lines=3))
    for name, entry in VERBS.items():
        known = VerbOptions(lines=1, form="wheels", batch=1)
        assert find_verb(name, VerbOptions(**{option: getattr(known, option) for option in entry.options})) is entry


@pytest.mark.parametrize(("text", "seconds"), [("10 min", 600.0), ("1.5 h", 5400.0), ("30 s", 30.0)])
def test_time_limits(text: str, seconds: float) -> None:
    assert read_seconds(text) == seconds


@pytest.mark.parametrize("text", ["10", "0 s", "soon"])
def test_a_time_limit_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        read_seconds(text)


@pytest.mark.parametrize("dry_run", [False, True])
def test_only_a_real_run_may_write_host_keys(
    tmp_path: Path, paths: Paths, monkeypatch: pytest.MonkeyPatch, dry_run: bool
) -> None:
    told: list[bool] = []

    def connect(drive: DriveEntry, deadline: Deadline, write_keys: bool) -> contextlib.closing[Shell]:
        told.append(write_keys)
        raise DriveUnreachable("nobody is there; switch it on")

    monkeypatch.setattr(run, "open_shell", connect)
    file = tmp_path / "inventory.yaml"
    file.write_text("name: lab\ndrives: {csd-00: }\n")
    deploy(DeployRequest(file, "stop", dry_run=dry_run), paths, Silent(), Board())
    assert told == [not dry_run]


def test_bad_input_speaks_with_no_drive(tmp_path: Path, paths: Paths) -> None:
    def connect(drive: DriveEntry, deadline: Deadline) -> contextlib.closing[Shell]:
        spoken.append(drive.name)
        raise DriveUnreachable("nobody is there; switch it on")

    spoken: list[str] = []
    file = tmp_path / "inventory.yaml"
    file.write_text("name: lab\ndrives: {csd-00: }\n")
    good = DeployRequest(file, "probe")
    for bad in (
        DeployRequest(tmp_path / "none.yaml", "probe"),
        DeployRequest(file, "prob"),
        DeployRequest(file, "probe", drives=["x"]),
        DeployRequest(file, "probe", jobs=0),
    ):
        with pytest.raises(ConfigurationError):
            deploy(bad, paths, Silent(), Board(), connect)
    assert spoken == []
    assert deploy(good, paths, Silent(), Board(), connect).drives[0].result == "failed"
    assert spoken == ["csd-00"]
