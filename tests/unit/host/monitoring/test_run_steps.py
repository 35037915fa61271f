"""Steps of a synchronous run reach metrics and page as they end, and count once, whatever comes afterwards."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest

from host.core.records import EventKind, EventRecord, RetuneRecord, RoundRecord, StepRecord
from host.core.tuning.batch_tuner import Floats, Retune
from host.monitoring.metrics.metrics_state import MetricsState
from host.monitoring.page.page_state import PageState
from host.monitoring.page.run_history import History
from host.monitoring.recorder import Recorder, ResumePoint
from host.monitoring.run_directory import RunDirectory
from host.monitoring.run_facts import RunFacts
from host.monitoring.run_listener import RunListener, show_round
from host.policies.batching.fixed import FixedBatches
from tests.support.metrics import scraped, starting
from tests.support.sync import StepDrive, SyncRun
from tests.support.sync_records import SyncRun as MadeUpRun

NAMES = ("csd-00", "csd-01")


class Observers:
    """Metrics and page of one run."""

    def __init__(self, names: tuple[str, ...] = NAMES) -> None:
        self.names = names
        facts = RunFacts("lab", "qemu", "digits_cnn", "sync", names, rounds=2)
        self.metrics, self.history = MetricsState(facts), History(facts, lambda: 0.0)

    @property
    def page(self) -> PageState:
        state = self.history.state({name: ("training", None) for name in self.names}, "0a", "1")
        return msgspec.structs.replace(state, revision=0)

    def join(self) -> None:
        for name in self.names:
            self.metrics.add_event(EventRecord(name, EventKind.JOINED))


class Watch(RunListener):
    """Notes what the others show whenever it is shown something; it comes last."""

    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self.seen: list[tuple[str, int, float, float, int, int]] = []

    def add_step(self, record: StepRecord, end_seconds: float, clocks: Mapping[str, str]) -> None:
        self._note("step", record.step, end_seconds)

    def add_retune(self, record: RetuneRecord) -> None:
        self._note("retune", record.step, 0.0)

    def add_round(self, record: RoundRecord) -> None:
        self._note("round", record.round, record.start_seconds + record.array_seconds)

    def _note(self, what: str, number: int, end_seconds: float) -> None:
        metrics, page = scraped(self._observers.metrics), self._observers.page
        count = sum(metrics["csd_step_duration_seconds_count"].values())
        steps, rounds = metrics["csd_step"]["sync",], metrics["csd_round"]["sync",]
        assert steps == count == page.totals.steps == len(page.series["array_rate"].x if count else ())
        self.seen.append((what, number, end_seconds, steps, int(rounds), page.totals.round))


class Growing(FixedBatches):
    """Asks for one record more after every third step."""

    def observe(self, step: int, compute_seconds: Floats, steps_left: int | None = None) -> Retune | None:
        return self.retune(np.minimum(self.batches + 1, 64), "more") if step % 3 == 0 else None


async def test_a_round_under_way_moves_metrics_and_page_and_counts_once(tmp_path: Path) -> None:
    live, resumed = Observers(), Observers()
    watch = Watch(live)
    recorder = Recorder([live.metrics, live.history, watch], "sha", 0, None)
    run = SyncRun(
        *(StepDrive(name) for name in NAMES),
        recorder=recorder,
        rounds=2,
        records=60,
        make_tuner=lambda plan: Growing(plan.batches, names=plan.nodes),
    )
    live.join()
    recorder.begin(starting(NAMES), run.accountant)
    with RunDirectory.create(tmp_path, "lab") as directory:
        recorder.open(directory)
        while not run.training.done:
            await recorder.add_round(await run.training.run_round(), run.training)
        rounds = list(directory.read_rounds())
        again = Recorder([resumed.metrics, resumed.history], "sha", 0, ResumePoint(directory, 2))
    steps = [step for record in rounds for step in record.steps]
    assert len(rounds) == 2
    assert len(steps) > 8
    assert sum(len(record.retunes) for record in rounds) >= 2
    shown = [(what, number) for what, number, *_ in watch.seen]
    assert [number for what, number in shown if what == "step"] == [step.step for step in steps]
    # Steps are shown while their round goes on, with the moment of the array's time at which they ended.
    end = 0.0
    for what, number, end_seconds, counted, ended, drawn in watch.seen:
        if what == "step":
            end += steps[number - 1].array_seconds
            assert (counted, ended, drawn) == (number, number > len(rounds[0].steps), number > len(rounds[0].steps))
        if what != "retune":
            assert end_seconds == pytest.approx(end)
    # Whoever is shown the records afterwards, as a resumed run's are, ends with the same figures.
    resumed.join()
    again.begin(starting(NAMES), run.accountant)
    assert scraped(resumed.metrics) == scraped(live.metrics)
    for one, other in ((live, resumed), (resumed, live)):
        assert one.page.totals == other.page.totals
        assert one.page.drives == other.page.drives
        assert one.page.batches == other.page.batches
    assert live.page.series.keys() == resumed.page.series.keys()
    for name, series in live.page.series.items():
        assert series.x == pytest.approx(resumed.page.series[name].x), name
        assert series.y == resumed.page.series[name].y, name


@pytest.mark.parametrize("told", [0, 1, 3, 10])
def test_what_was_shown_before_is_not_shown_with_the_round(told: int) -> None:
    class Listed(RunListener):
        def __init__(self) -> None:
            self.steps: list[int] = []
            self.retunes: list[int] = []

        def add_step(self, record: StepRecord, end_seconds: float, clocks: Mapping[str, str]) -> None:
            assert sorted(clocks) == ["csd-00", "csd-01", "csd-02", "csd-03", "host"]
            self.steps.append(record.step)

        def add_retune(self, record: RetuneRecord) -> None:
            assert record.step > (self.steps[-1] if self.steps else told)
            self.retunes.append(record.step)

    record, listed = MadeUpRun(steps=100, round_steps=100).make()[0], Listed()
    before = sum(retune.step <= told for retune in record.retunes)
    show_round([listed], record, told, before)
    assert listed.steps == list(range(told + 1, 101))
    assert listed.retunes == [retune.step for retune in record.retunes[before:]]
