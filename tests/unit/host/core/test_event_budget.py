import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.util.node_names import HOST
from host.core.event_budget import MOST_LISTED, EventBudget
from host.core.records import EventKind, EventRecord, decode_record
from host.monitoring.page.run_history import History
from host.monitoring.recorder import Recorder
from host.monitoring.run_directory import RunDirectory
from host.monitoring.run_facts import RunFacts
from host.monitoring.run_listener import RunListener
from tests.support.metrics import defined, scraped

events = st.tuples(st.sampled_from(["csd-00", "csd-01"]), st.sampled_from(["refused", "left"]), st.floats(0, 20))


@given(happened=st.lists(events, max_size=300), most=st.integers(1, 10))
def test_every_event_is_listed_or_counted_and_no_more_are_listed_than_may(
    happened: list[tuple[str, str, float]], most: int
) -> None:
    now, listed, counted = 0.0, Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    budget = EventBudget(most, lambda: now)
    for device, kind, seconds in happened:
        now += seconds
        counted.update(budget.take_counted())
        listed[device, kind] += budget.admits(device, kind)
        assert listed[device, kind] <= most * (now // 60 + 1)
    counted.update(budget.take_counted(at_once=True))
    assert listed + counted == Counter((device, kind) for device, kind, _ in happened)


class _Follower(RunListener):
    def __init__(self) -> None:
        self.listed: list[EventRecord] = []
        self.counted: list[EventRecord] = []

    def add_event(self, event: EventRecord, listed: bool = True) -> None:
        (self.listed if listed else self.counted).append(event)


def test_a_wrong_hello_for_ever_leaves_a_few_lines_and_the_number_of_the_others(tmp_path: Path) -> None:
    """It wrote 411 MB of records in 8 s."""
    follower, state, history = (
        _Follower(),
        defined(),
        History(RunFacts("lab", "qemu", "digits_cnn", "federated", ("csd-00", "csd-01"))),
    )
    recorder, why = Recorder([follower, state, history], "job", 0, None), "x" * 250_000
    with RunDirectory.create(tmp_path, "lab") as directory:
        recorder.open(directory)
        recorder.add_event("csd-01", EventKind.JOINED, "")
        for _ in range(10_000):
            recorder.add_event("csd-00", EventKind.REFUSED, why)
        recorder.add_event("csd-01", EventKind.LOST, "in round 3")
        recorder.list_counted()
        lines = (directory.path / "records.jsonl").read_bytes().splitlines()
    assert sum(map(len, lines)) < 1_000_000
    records = [decode_record(line) for line in lines]
    assert len(records) == 1 + MOST_LISTED + 2
    told = records[-1]
    assert isinstance(told, EventRecord)
    assert (told.device, told.what, told.detail) == ("csd-00", EventKind.NOTE, "refused: and 9,970 more in this minute")
    assert len(follower.listed) == len(records)
    assert len(follower.counted) == 9_970
    devices = [event.device for event in history.state({}, "", "").events]
    assert devices.count("csd-01") == 2  # an honest drive's events are still on the page
    errors = {key: value for key, value in scraped(state)["csd_errors_total"].items() if value}
    assert errors == {("csd-00", "refused"): 10_000.0, ("csd-01", "lost"): 1.0}


def test_contributions_that_are_refused_are_counted_by_their_reasons_all_of_them() -> None:
    state = defined()
    recorder = Recorder([state], "job", 0, None)
    for _ in range(100):
        recorder.add_event("csd-00", EventKind.REJECTED, "in round 3: it has values that are not finite [not_finite]")
    counts = {key: value for key, value in scraped(state)["csd_updates_rejected_total"].items() if value}
    assert counts == {("csd-00", "not_finite"): 100.0}


def test_what_the_host_says_of_itself_is_always_listed() -> None:
    follower = _Follower()
    recorder = Recorder([follower], "job", 0, None)
    for _ in range(1000):
        recorder.add_event(HOST, EventKind.RETUNED, "from step 5")
    assert len(follower.listed) == 1000


def test_events_before_there_is_a_directory_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    recorder = Recorder([], "job", 0, None)
    for _ in range(1000):
        recorder.add_event("csd-00", EventKind.REFUSED, "why")
    assert len(recorder._early) == MOST_LISTED
