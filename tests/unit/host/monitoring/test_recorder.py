"""A run that goes on for days: what it has recorded is in its directory, not in memory."""

import gc
import json
from pathlib import Path
from typing import Any, cast

import pytest

from host.app.round_table import RoundTable
from host.core import console
from host.core.records import RoundRecord
from host.monitoring.metrics.metrics_state import MetricsState
from host.monitoring.page.run_history import History
from host.monitoring.recorder import Recorder
from host.monitoring.run_directory import RunDirectory
from host.monitoring.run_facts import RunFacts
from host.monitoring.run_log import RunLog
from host.monitoring.run_trace import write_trace
from tests.support.records import array_rounds

NAMES = ("csd-00", "csd-01")


class Done:
    """What a recorder asks of a training."""

    done = False


def count_rounds() -> int:
    gc.collect()
    return sum(type(each) is RoundRecord for each in gc.get_objects())  # isinstance would ask the object


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [False, True])
async def test_rounds_that_are_over_are_not_kept(
    tmp_path: Path, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console.console, "_force_terminal", terminal)
    facts = RunFacts("lab", "native", "digits_cnn", "federated", NAMES, rounds=100)
    history, metrics = History(facts), MetricsState(facts)
    before = count_rounds()
    with RunDirectory.create(tmp_path, "lab") as directory, RoundTable("modelled") as table:
        recorder = Recorder([history, metrics, RunLog(0), table], "sha", 0, None)
        recorder.open(directory)
        for record in array_rounds(100, NAMES):
            await recorder.add_round(record, cast(Any, Done()))
        del record
        assert count_rounds() - before <= 5  # the page draws the timeline of the last ones
        assert recorder.last_round == 100
        assert [record.round for record in directory.read_rounds()] == list(range(1, 101))


@pytest.mark.parametrize("most", [1, 7, 10**6])
def test_a_trace_has_the_last_spans_and_says_how_many_it_leaves_out(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("host.monitoring.run_trace.MOST_SPANS", most)
    rounds = array_rounds(3, NAMES)
    spans = [span for record in rounds for span in record.spans]
    trace = json.loads(write_trace(tmp_path, iter(rounds), "lab").read_bytes())
    found = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [event["ts"] for event in found] == [span.start_seconds * 1e6 for span in spans[-most:]]
    assert trace["otherData"].get("spans_left_out", 0) == max(0, len(spans) - most)
