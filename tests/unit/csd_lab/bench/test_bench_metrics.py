"""The comparison of the bench `metrics`, with a Prometheus that computes from the records; or nearly."""

import math
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from csd_lab.bench.command_lab import read_rounds
from csd_lab.bench.monitoring.bench_metrics import (
    QueryWindow,
    ask,
    joules,
    joules_per_record,
    list_windows,
    rates,
    watts,
)
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.records import EventKind, EventRecord, RoundRecord
from tests.support.records import device_round, round_record, write_run


def rounds() -> list[RoundRecord]:
    return [
        round_record(
            [
                device_round(name, 100, PhaseSeconds(forward=1.0 + number), energy_joules={"idle": 6.0, "cpu": 1.5})
                for name in ("csd-00", "csd-01")
            ],
            round=number,
            array_seconds=3.0,
            energy_joules={"host": {"idle": 30.0}},
        )
        for number in (1, 2, 3, 4)
    ]


class FakePrometheus:
    """Answers from records of rounds that ended one per second; every answer is off by `factor`, or missing."""

    def __init__(self, records: list[RoundRecord], factor: float = 1.0, silent_on: str | None = None) -> None:
        self.records, self.factor, self.silent_on = records, factor, silent_on

    def samples(self, selector: str, window: str, at_seconds: float) -> list[tuple[float, float]]:
        length = 3600.0 if window == "1h" else int(window.removesuffix("ms")) / 1000
        last = len(self.records)
        return [(s, s) for s in (float(n) for n in range(last + 1)) if at_seconds - length <= s <= at_seconds]

    def value(self, expression: str, at_seconds: float, label: str) -> dict[str, float]:
        (length,) = re.findall(r"\[(\d+)ms\]", expression)[:1] or [0]
        seen = [second for second, _ in self.samples("", f"{length}ms", at_seconds)]
        inside = [record for record in self.records if seen and seen[0] < record.round <= seen[-1]]
        if "compute" in expression:
            answer = rates(inside)
        elif "device_seconds" in expression:
            answer = watts(inside)
        elif "samples" in expression:
            answer = joules_per_record(inside)
        else:
            answer = joules([record for record in self.records if record.round <= at_seconds])
        return {name: value * self.factor for name, value in answer.items() if name != self.silent_on}


def test_rounds_of_a_run_that_diverged_are_read(tmp_path: Path) -> None:
    write_run(tmp_path, [EventRecord("csd-00", EventKind.JOINED), *(replace(r, test_loss=math.nan) for r in rounds())])
    assert [record.round for record in read_rounds(tmp_path) if math.isnan(record.test_loss)] == [1, 2, 3, 4]


def answers(prometheus: FakePrometheus) -> list[float]:
    windows = list(list_windows(prometheus, 4.0, 4))  # type: ignore[arg-type]
    assert (windows[0].before_round, windows[0].last_round) == (0, 4)
    assert len(windows) > 2
    return [answer.error for window in windows for answer in ask(prometheus, window, rounds())]  # type: ignore[arg-type]


def test_right_answers_have_no_error_and_wrong_ones_the_error_that_they_have() -> None:
    assert max(answers(FakePrometheus(rounds()))) == 0
    assert max(answers(FakePrometheus(rounds(), factor=1.03))) == pytest.approx(0.03)


def test_a_missing_answer_is_an_error_of_one() -> None:
    errors = answers(FakePrometheus(rounds(), silent_on="csd-01"))
    assert max(errors) == 1
    assert min(errors) == 0


def test_a_last_round_that_was_not_scraped_is_an_error() -> None:
    """The window over the whole run is held against all rounds, whatever was seen of them."""
    assert max(answers(FakePrometheus(rounds()[:3]))) > 0.05


def test_what_the_record_says() -> None:
    window = QueryWindow(4.0, "2000ms", 1, 3)
    inside = window.of(rounds())
    assert [record.round for record in inside] == [2, 3]
    assert rates(inside) == {"csd-00": 200 / 7, "csd-01": 200 / 7}
    assert joules(inside) == {"csd-00": 15.0, "csd-01": 15.0, "host": 60.0}
    assert watts(inside) == {"csd-00": 2.5, "csd-01": 2.5, "host": 10.0}
    assert joules_per_record(inside) == {"": 90 / 400}
    assert math.isclose(sum(joules(rounds()).values()), sum(record.total_joules for record in rounds()))
