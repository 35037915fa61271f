"""What drives say and send in synchronous steps is screened before anything is stepped with it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from firmware_agent.common.errors import Diverged
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.session_frames import Disturbed
from firmware_agent.common.frames.step_frames import Step, Stepped
from firmware_agent.common.slices import Array
from host.core.records import EventKind
from host.training.contributions import reason_of
from tests.support.fakes import Answer
from tests.support.sync import StepDrive, SyncRun
from tests.unit.host.training.sync.test_sync_faults import steps_of, used

HONEST = ["csd-00", "csd-01", "csd-02"]


class Liar(StepDrive):
    """Its gradients, or its report, are what they should not be, from one step on."""

    def __init__(self, device: str, since: int = 1, clock: str = "counted", **lie: Any) -> None:
        super().__init__(device, clock=clock)
        self.since, self.lie = since, lie

    def step_on(self, task: Step, weights: Mapping[str, Array]) -> Iterator[Answer]:
        self.now = self.lie if task.step >= self.since else {}
        return super().step_on(task, weights)

    def gradients(self, records: Array, weights: Mapping[str, Array]) -> dict[str, Array]:
        gradients = super().gradients(records, weights)
        if "value" in self.now:
            gradients["b"][1] = self.now["value"]
        if "buffer" in self.now:
            gradients["n"] = gradients["n"] * 0 + self.now["buffer"]
        if "scale" in self.now:
            gradients |= {name: gradients[name] * np.float32(self.now["scale"]) for name in ("w", "b")}
        return gradients

    def stepped(self, task: Step) -> Stepped:
        said = {key: value for key, value in self.now.items() if key not in ("value", "scale", "buffer")}
        return msgspec.structs.replace(super().stepped(task), **said)


LIES: list[tuple[dict[str, Any], str]] = [
    ({"value": math.nan}, "not_finite"),
    ({"value": -math.inf}, "not_finite"),
    ({"value": 1e30}, "norm"),
    ({"scale": 100.0}, "norm"),
    ({"scale": 900.0}, "norm"),
    ({"buffer": 2**50}, "norm"),
    ({"samples": 2**53}, "samples"),
    ({"loss": math.nan}, "loss"),
    ({"seconds": PhaseSeconds(1e-9)}, "seconds"),
    ({"peak_memory_bytes": 2**53}, "report"),
    ({"read_bytes": 2**53}, "report"),
]


@pytest.mark.slow
@pytest.mark.parametrize("since", [1, 4])
@pytest.mark.parametrize(("lie", "reason"), LIES)
async def test_a_lie_is_refused_named_and_goes_into_no_step(lie: dict[str, Any], reason: str, since: int) -> None:
    run = SyncRun(*map(StepDrive, HONEST), Liar("csd-03", since, **lie), records=160)
    rounds = await run.run()
    assert all(np.isfinite(array).all() for array in run.training.weights.values())
    rejected = run.told(EventKind.REJECTED)
    assert [text.split(":")[0] for text in rejected] == ["csd-03"] * 3
    assert {str(reason_of(text)) for text in rejected} == {reason}
    assert [f"step {number}:" in text for number, text in enumerate(rejected, since)] == [True] * 3
    assert [text.split(":")[0] for text in run.told(EventKind.SET_ASIDE)] == ["csd-03"]
    diverging = reason in ("not_finite", "norm", "loss")
    assert [f"since step {since}" in text for text in run.told(EventKind.DIVERGING)] == [True] * diverging
    assert used(run, steps_of(rounds)) == {record: 1 for record in range(160)}
    for step in steps_of(rounds):
        assert ("csd-03" in step.lost) == (since <= step.step < since + 3)
    if "buffer" in lie:
        assert run.training.weights["n"] == len(steps_of(rounds))
    if "scale" in lie:  # it is in the weights as little as one that no limit lets pass
        huge = SyncRun(*map(StepDrive, HONEST), Liar("csd-03", since, scale=1e8), records=160)
        assert not any(step.mixed for step in steps_of([*rounds, *await huge.run()]))
        for name, array in huge.training.weights.items():
            assert run.training.weights[name].tobytes() == array.tobytes()


@pytest.mark.slow
async def test_a_gradient_of_no_numbers_or_of_huge_ones_moves_nothing() -> None:
    runs = [SyncRun(*map(StepDrive, HONEST), Liar("csd-03", scale=scale), records=160) for scale in (math.nan, 1e6)]
    for run in runs:
        rounds = await run.run()
        assert not any(step.mixed for step in steps_of(rounds))
    for name, array in runs[0].training.weights.items():
        assert runs[1].training.weights[name].tobytes() == array.tobytes()


async def test_honest_gradients_that_rise_together_are_held_back_and_not_refused() -> None:
    run = SyncRun(*(Liar(name, 4, scale=500.0) for name in HONEST), records=60)
    steady = SyncRun(*map(StepDrive, HONEST), records=60)
    assert not any(step.lost or step.mixed for step in steps_of(await run.run()))
    await steady.run()
    assert not run.told(EventKind.REJECTED)
    assert np.abs(run.training.weights["w"]).max() > 100 * np.abs(steady.training.weights["w"]).max()


async def test_a_drive_that_is_lost_over_a_huge_gradient_leaves_nothing_of_it() -> None:
    class Leaver(StepDrive):
        """It sends a huge gradient, and breaks the protocol before its report."""

        def step_on(self, task: Step, weights: Mapping[str, Array]) -> Iterator[Answer]:
            if task.step < 4:
                yield from super().step_on(task, weights)
                return
            huge = {name: array * 0 + 10**6 for name, array in weights.items()}
            yield from self.tensors(task.step, huge)
            yield Disturbed(1)

    run = SyncRun(*map(StepDrive, HONEST), Leaver("csd-03"), records=160)
    steps = steps_of(await run.run())
    assert [step.step for step in steps if "csd-03" in step.lost] == [4]
    assert not any(step.mixed for step in steps)


@pytest.mark.parametrize("lie", [{"value": math.nan}, {"loss": math.inf}])
async def test_when_all_diverge_the_run_ends_with_advice(lie: dict[str, Any]) -> None:
    drives = [Liar(name, 3, **lie) for name in HONEST]
    run = SyncRun(*drives, records=60, learning_rate=2.5)
    advice = r"lower learning_rate \(it is 2.5\), raise batch_size \(it is 4\), or clip gradients: clip_norm"
    with pytest.raises(Diverged, match=rf"step 3: .*on all drives.*{advice}"):
        await run.run()
    assert all(np.isfinite(array).all() for array in run.training.weights.values())


async def test_a_learning_rate_too_high_ends_in_words_and_not_in_weights_that_are_none() -> None:
    class Steep(StepDrive):
        """Its gradient is steeper the farther the weights are from zero."""

        def gradients(self, records: Array, weights: Mapping[str, Array]) -> dict[str, Array]:
            with np.errstate(all="ignore"):
                scaled = {name: weights[name] * 3 + 1 for name in ("w", "b")}
            return scaled | {"n": weights["n"] + 1}

    run = SyncRun(*map(Steep, HONEST), records=6000, learning_rate=100.0)
    with pytest.raises(Diverged, match=r"lower learning_rate \(it is 100\)"):
        await run.run()
    assert run.told(EventKind.DIVERGING)


@pytest.mark.slow
@pytest.mark.parametrize("clock", ["counted", "wall"])
@pytest.mark.parametrize("lie", [1e-9, 2e-5, 1e-4, 5e-4])
async def test_a_drive_that_says_how_fast_it_is_parks_nobody(clock: str, lie: float) -> None:
    liar = Liar("csd-03", 3, clock, seconds=PhaseSeconds(lie))
    run = SyncRun(
        *(StepDrive(name, clock=clock) for name in HONEST),
        liar,
        records=400,
        tuner="hypertune",
        sync={"tuning": {"slow_batch": 4}},
    )
    rounds = await run.run()
    for retune in (retune for record in rounds for retune in record.retunes):
        assert all(retune.after[name] >= retune.before[name] for name in HONEST), retune


@pytest.mark.parametrize("lie", [1e-9, 1e-4])
async def test_a_drive_that_says_how_fast_it_is_makes_nobody_late(lie: float) -> None:
    liar = Liar("csd-03", 1, seconds=PhaseSeconds(lie))
    run = SyncRun(*map(StepDrive, HONEST), liar, records=160, sync={"straggler_factor": 1.5})
    assert not any(step.late for step in steps_of(await run.run()))


@pytest.mark.slow
@pytest.mark.parametrize("value", [None, math.nan])
async def test_a_resumed_run_judges_as_one_that_never_stopped(value: float | None) -> None:
    def make() -> SyncRun:
        last = StepDrive("csd-03") if value is None else Liar("csd-03", 9, value=value)
        return SyncRun(*map(StepDrive, HONEST), last, records=64, rounds=4)

    whole, first, second = make(), make(), make()
    await whole.run()
    for _ in range(2):
        await first.training.run_round()
    second.training.restore(first.training.state())
    await second.run()
    for name, array in whole.training.weights.items():
        assert np.array_equal(array, second.training.weights[name])
    assert second.told(EventKind.REJECTED) == whole.told(EventKind.REJECTED)
