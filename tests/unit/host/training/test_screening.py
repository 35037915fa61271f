"""What a drive says and sends is screened: laws over random contributions, and whole federated rounds with a liar."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_agent.common.errors import Diverged
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.session_frames import Train, Trained
from firmware_agent.common.slices import Array
from host.core.records import EventKind
from host.core.tensor_sums import Norms, Scan, scan_update, squares
from host.training.contributions import AssignedWork, Reason, Refusal, ScreenedContribution, reason_of
from host.training.screening import EXPLODING, NORM_FACTOR, Screen
from tests.support.examples import examples
from tests.support.fakes import Answer, FakeDrive
from tests.unit.host.training.test_federated import Run

FLOATS = st.sampled_from(["float16", "float32", "float64"])
BACK = "it takes part again once it has dialled anew"
SECONDS = PhaseSeconds(0.1, 0.2, 0.05, 0.01)


def part(device: str, norm: float = 1.0, **said: Any) -> ScreenedContribution:
    fields: dict[str, Any] = {"round": 1, "samples": 10, "steps": 2, "loss": 0.5, "seconds": SECONDS, "read_bytes": 640}
    trained = Trained(**(fields | said))
    return ScreenedContribution(device, AssignedWork(10, 2), trained, Scan(Norms(norm)), "counted")


@given(st.data(), FLOATS, st.integers(0, 20_000))
@settings(max_examples=examples(60))
def test_one_pass_tells_the_norm_and_whether_all_is_finite(data: st.DataObject, dtype: str, size: int) -> None:
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    array, start = (generator.standard_normal(size).astype(dtype) for _ in range(2))
    finite, total = squares(array, start)
    assert finite
    assert total == pytest.approx(float(np.square(array.astype(np.float64) - start).sum()), rel=1e-2, abs=1e-9)
    if size:
        array[data.draw(st.integers(0, size - 1))] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
        assert not squares(array).finite
        assert not squares(array, start).finite


def test_values_too_large_to_be_squared_are_finite_and_whole_numbers_beyond_any_mean_are_not() -> None:
    assert squares(np.full(9, 3e38, np.float32)) == (True, pytest.approx(9 * float(np.float32(3e38)) ** 2))
    assert squares(np.full(9, 1e300)) == (True, math.inf)
    assert squares(np.array([1, 2, 3])) == (True, 14.0)
    assert not squares(np.array([1, 2**62])).finite
    assert squares(np.empty(0, np.float32)) == (True, 0.0)


def test_the_first_bad_tensor_is_named_and_buffers_are_apart() -> None:
    start: dict[str, Array] = {"w": np.zeros(3, np.float32), "mean": np.zeros(2, np.float32), "n": np.int64(3)}  # type: ignore[dict-item]
    new = {"w": np.full(3, 2, np.float32), "mean": np.full(2, 5, np.float32), "n": np.asarray(9)}
    assert scan_update(new, start, {"mean", "n"}) == Scan(
        Norms(pytest.approx(math.sqrt(12)), pytest.approx(math.sqrt(50)), 6.0)
    )
    new["mean"][1] = np.nan
    assert scan_update(new, start, {"mean", "n"}).bad == "mean"


def changed(device: str, steps: int = 2, **norms: float) -> ScreenedContribution:
    scan = Scan(Norms(1.0, norms.get("buffer", 0.0), norms.get("count", float(steps))))
    said = Trained(1, 10, steps, 0.5, SECONDS, 640)
    return ScreenedContribution(device, AssignedWork(10, steps), said, scan, "modelled")


@pytest.mark.parametrize("rounds_before", [0, 3])
@pytest.mark.parametrize("lie", [{"buffer": 1e-3}, {"buffer": 1e30}, {"count": 2.0**52}, {"count": 100.0}])
def test_a_buffer_that_nobody_else_changes_may_not_change_and_counts_are_bounded(
    rounds_before: int, lie: dict[str, float]
) -> None:
    screen, honest = Screen(), [changed(f"csd-{number:02d}") for number in range(3)]
    for _ in range(rounds_before):
        assert not screen.judge([*honest, changed("liar")])
    again = Screen()
    again.load_state(screen.state())
    assert list(again.judge([*honest, changed("liar", **lie)])) == ["liar"]
    if rounds_before:
        assert list(again.judge([changed("liar", **lie)])) == ["liar"], "alone, by the others' history"


@pytest.mark.parametrize("rounds_before", [0, 3])
def test_tensors_of_an_algorithm_may_be_unlike_but_not_of_another_world(rounds_before: int) -> None:
    def sent(device: str, extra: float) -> ScreenedContribution:
        said = Trained(1, 30, 9, 0.5, SECONDS, 640)  # as many records and steps as a program likes
        scan = Scan(Norms(1.0, extra_norm=extra))
        return ScreenedContribution(device, AssignedWork(10, 2), said, scan, "modelled", by_program=True)

    screen = Screen()
    for _ in range(rounds_before):
        assert screen.judge([sent("a", 1.0), sent("b", 300.0), sent("c", 0.5)]) == {}
    refused = screen.judge([sent("a", 1.0), sent("b", 1e30), sent("c", 0.5)])
    assert {device: why.reason for device, why in refused.items()} == {"b": Reason.NORM}
    assert "further tensors" in refused["b"].detail


def test_a_program_takes_records_and_steps_within_bounds() -> None:
    def sent(samples: int, steps: int) -> ScreenedContribution:
        said = Trained(1, samples, steps, 0.5, SECONDS, 640)
        return ScreenedContribution("a", AssignedWork(10, 2), said, Scan(Norms(1.0)), "modelled", by_program=True)

    for samples, steps in ((0, 0), (10, 2), (10_000, 500)):
        assert Screen().judge([sent(samples, steps)]) == {}
    for samples, steps in ((10_001, 500), (10, 11)):
        assert Screen().judge([sent(samples, steps)])["a"].reason is Reason.SAMPLES


def test_statistics_may_change_a_lot_only_before_there_is_a_history_and_counts_follow_the_steps() -> None:
    screen, honest = Screen(), [changed(f"csd-{number:02d}", buffer=1.0) for number in range(3)]
    assert not screen.judge([*honest, changed("far", buffer=900.0), changed("busy", steps=100, buffer=1.0)])
    assert list(screen.judge([*honest, changed("far", buffer=900.0)])) == ["far"]
    assert not screen.judge([*honest, changed("far", buffer=19.0)])


LIES: list[tuple[Reason, dict[str, Any]]] = [
    (Reason.SAMPLES, {"samples": 2**53}),
    (Reason.SAMPLES, {"samples": 0}),
    (Reason.SAMPLES, {"steps": 1}),
    (Reason.SECONDS, {"seconds": PhaseSeconds(1e-9)}),
    (Reason.SECONDS, {"seconds": PhaseSeconds()}),
    (Reason.SECONDS, {"seconds": PhaseSeconds(1e-4)}),
    (Reason.SECONDS, {"seconds": PhaseSeconds(1e12)}),
    (Reason.NORM, {"norm": 100.0}),
    (Reason.LOSS, {"loss": math.nan}),
    (Reason.LOSS, {"loss": -1e30}),
    (Reason.LOSS, {"loss": 1e30}),
    (Reason.REPORT, {"peak_memory_bytes": 2**53}),
    (Reason.REPORT, {"read_bytes": 2**53}),
]


@pytest.mark.parametrize(("reason", "lie"), LIES)
@pytest.mark.parametrize("others", [2, 3, 7])
def test_each_lie_is_refused_for_its_reason_and_the_honest_are_not(
    reason: Reason, lie: dict[str, Any], others: int
) -> None:
    honest = [part(f"csd-{number:02d}", 1.0 + number / 10) for number in range(others)]
    for place in range(others + 1):  # in the first round, wherever it stands
        parts = [*honest[:place], part("liar", **lie), *honest[place:]]
        refused = Screen().judge(parts)
        assert {device: why.reason for device, why in refused.items()} == {"liar": reason}
    screen = Screen()
    assert not screen.judge([*honest, part("liar")])
    assert list(screen.judge([part("liar", **lie)])) == ["liar"]  # alone, by its history


@pytest.mark.slow
@given(st.data())
@settings(max_examples=examples(200))
def test_no_honest_drive_is_refused_however_unlike_the_others_its_data_are(data: st.DataObject) -> None:
    """Norms within a factor of 4 of a trend, by the steps taken more; seconds within a factor of 20."""
    screen, count = Screen(), data.draw(st.integers(1, 8))
    shards = [data.draw(st.integers(1, 400)) for _ in range(count)]
    trend = data.draw(st.floats(1e-3, 1e3))
    for _ in range(12):
        trend *= data.draw(st.floats(0.3, 1.3))
        parts = []
        for number, size in enumerate(shards):
            steps = -(-size // 32)
            norm = trend * data.draw(st.floats(0.5, 2.0)) * data.draw(st.floats(math.sqrt(steps), steps))
            seconds = PhaseSeconds(size * 1e-3 * data.draw(st.floats(1.0, 20.0)))
            said = Trained(1, size, steps, data.draw(st.floats(0, 50)), seconds, 64 * size)
            parts.append(
                ScreenedContribution(f"csd-{number}", AssignedWork(size, steps), said, Scan(Norms(norm)), "wall")
            )
        assert screen.judge(parts) == {}


@given(st.floats(1e-4, 1e2), st.sampled_from([1e-5, 1e-4, 1e9, 1e300]), st.booleans())
def test_of_two_drives_no_lie_about_seconds_has_the_honest_one_refused(honest: float, lie: float, past: bool) -> None:
    screen, usual = Screen(), part("honest", seconds=PhaseSeconds(honest))
    if past:
        assert not screen.judge([usual, part("liar", seconds=PhaseSeconds(honest))])
    for _ in range(3):
        assert "honest" not in screen.judge([usual, part("liar", seconds=PhaseSeconds(lie))])


@pytest.mark.parametrize("place", range(3))
def test_a_stall_of_two_seconds_has_neither_of_two_drives_refused(place: int) -> None:
    screen, quick = Screen(), PhaseSeconds(1.5e-3)
    for turn in range(3):
        own = PhaseSeconds(2.0) if turn == place else quick
        assert not screen.judge([part("csd-00", seconds=quick), part("csd-01", seconds=own)])


@pytest.mark.slow
@given(st.data())
@settings(max_examples=examples(100))
def test_a_minority_of_liars_moves_the_limit_by_nothing(data: st.DataObject) -> None:
    screen, honest = Screen(), [part(f"csd-{n}", 1.0 + n / 10) for n in range(data.draw(st.integers(3, 8)))]
    liars = (len(honest) - 1) // 2
    for _ in range(10):
        parts = honest + [part(f"liar-{n}", data.draw(st.floats(0, 1e30))) for n in range(liars)]
        refused = screen.judge(parts)
        assert not set(refused) & {each.device for each in honest}
        assert screen.norms.norm <= 1.8
    assert [*screen.judge([*honest, part("liar", 1.8 * NORM_FACTOR + 1)])] == ["liar"]


def test_modelled_seconds_are_not_looked_at() -> None:
    odd = [msgspec.structs.replace(part("x").said, seconds=PhaseSeconds(value)) for value in (0.0, 1e-9, 1e12)]  # type: ignore[type-var]
    parts = [
        ScreenedContribution(f"csd-{n}", AssignedWork(10, 2), said, Scan(Norms(1.0)), "modelled")
        for n, said in enumerate(odd)
    ]
    assert Screen().judge(parts) == {}


@given(st.sampled_from(Reason), st.text(max_size=40))
def test_the_reason_can_be_read_from_the_event(reason: Reason, detail: str) -> None:
    assert reason_of(Refusal(reason, detail).told("round 3")) is reason
    assert reason_of("in round 3: something [unheard_of]") is Reason.OTHER


def test_a_screen_goes_on_from_its_state() -> None:
    screen, other = Screen(), Screen()
    screen.judge([part("a"), part("b", 2.0)])
    other.load_state(msgspec.json.decode(msgspec.json.encode(screen.state())))
    assert other == screen
    other.load_state({})
    assert other == Screen()


class Liar(FakeDrive):
    """A drive whose weights, or report, are what they should not be, from one round on."""

    def __init__(self, *arguments: Any, since: int = 1, **lie: Any) -> None:
        super().__init__(*arguments)
        self.since, self.lie = since, lie

    def train(self, task: Train, weights: Mapping[str, Array]) -> Iterator[Answer]:
        lie = dict(self.lie) if task.round >= self.since else {}
        value = lie.pop("weight", None)
        arrays = {name: array + np.asarray(self.step, array.dtype) for name, array in weights.items()}
        if value is not None:
            arrays["b"] = arrays["b"] * 0 + np.float32(value)
        yield from self.tensors(task.round, arrays)
        yield msgspec.structs.replace(self.trained(task), **lie)


NAMED: list[tuple[dict[str, Any], str]] = [
    ({"weight": math.nan}, "not_finite"),
    ({"weight": math.inf}, "not_finite"),
    ({"weight": 1e30}, "norm"),
    ({"weight": 1e3}, "norm"),
    ({"samples": 2**53}, "samples"),
    ({"steps": 2**53}, "samples"),
    ({"loss": math.nan}, "loss"),
    ({"seconds": PhaseSeconds(1e-9)}, "seconds"),
    ({"peak_memory_bytes": 2**53}, "report"),
    ({"read_bytes": 2**53}, "report"),
]


def told(run: Run, what: EventKind) -> list[tuple[str, str]]:
    return [(record.device, record.detail) for record in run.records if getattr(record, "what", None) is what]  # type: ignore[union-attr]


@pytest.mark.parametrize(("lie", "reason"), NAMED)
async def test_a_lie_is_refused_and_recorded_and_the_others_train_as_without_it(
    lie: dict[str, Any], reason: str
) -> None:
    names = ["csd-00", "csd-01", "csd-02"]
    run = Run(*(FakeDrive(name) for name in names), Liar("liar", **lie), rounds=5, names=[*names, "liar"])
    alone = Run(*(FakeDrive(name) for name in names), rounds=5)
    rounds, _ = await run.run(), await alone.run()
    assert all(record.lost == ["liar"] for record in rounds)
    for name, array in alone.weights.items():
        assert run.weights[name].tobytes() == array.tobytes()
    rejected = told(run, EventKind.REJECTED)
    assert [device for device, _ in rejected] == ["liar"] * 3
    assert all(f"in round {number}: " in detail for number, (_, detail) in enumerate(rejected, 1))
    assert {str(reason_of(detail)) for _, detail in rejected} == {reason}
    assert told(run, EventKind.SET_ASIDE) == [
        ("liar", "refused 3 times running; it takes part again once it has dialled anew")
    ]
    diverging = told(run, EventKind.DIVERGING)
    assert [device for device, _ in diverging] == ["liar"] * (reason in ("not_finite", "norm", "loss"))
    assert run.accountant.array_seconds == pytest.approx(alone.accountant.array_seconds)


async def test_a_drive_that_was_set_aside_takes_part_again_once_it_has_dialled_anew() -> None:
    run = Run(FakeDrive("csd-00"), FakeDrive("csd-01"), Liar("csd-02", weight=math.nan), rounds=6)
    for _ in range(4):
        await run.training.run_round()
    run.fleet.join(FakeDrive("csd-02"))
    record = await run.training.run_round()
    assert record.lost == []


async def test_it_is_told_since_when_a_drive_diverges() -> None:
    run = Run(FakeDrive("csd-00"), FakeDrive("csd-01"), Liar("csd-02", since=3, weight=math.nan), rounds=4)
    await run.run()
    ((device, detail),) = told(run, EventKind.DIVERGING)
    assert device == "csd-02"
    assert detail.startswith("since round 3: b has values that are no finite numbers; ")
    assert "of round 2, with a loss of 0.5" in detail


@pytest.mark.parametrize("lie", [{"weight": math.nan}, {"loss": math.inf}, {"weight": 1e38}])
async def test_when_all_diverge_the_run_ends_with_advice_and_the_weights_before(lie: dict[str, Any]) -> None:
    drives = [Liar(f"csd-0{number}", since=3, **lie) for number in range(3)]
    run = Run(*drives, rounds=9, learning_rate=7.5, batch_size=16)
    with pytest.raises(
        Diverged, match=r"round 3: .*diverged.*lower learning_rate \(it is 7.5\).*batch_size \(it is 16\)"
    ):
        await run.run()
    assert Diverged.exit_code == 1
    assert run.weights["w"].flat[0] == 2.0
    assert "host" in {device for device, _ in told(run, EventKind.DIVERGING)}


async def test_a_strategy_that_makes_no_finite_weights_is_named_and_the_old_ones_stay() -> None:
    run = Run(FakeDrive("csd-00"), FakeDrive("csd-01"), rounds=2)
    endless = {"aggregate": lambda weights, _: {n: a * np.float32(math.inf) for n, a in weights.items()}}
    vars(run.training._strategy.strategy).update(endless)
    with np.errstate(all="ignore"), pytest.raises(Diverged, match="what the strategy makes of w is not"):
        await run.run()
    assert run.weights["w"].flat[0] == 0.0


@pytest.mark.parametrize("make", [lambda: Liar("csd-02", since=4, weight=1e3), lambda: FakeDrive("csd-02")])
async def test_a_resumed_run_judges_as_one_that_never_stopped(make: Callable[[], FakeDrive]) -> None:
    def start() -> Run:
        return Run(FakeDrive("csd-00"), FakeDrive("csd-01"), make(), rounds=5)

    whole, first, second = start(), start(), start()
    await whole.run()
    for _ in range(3):
        await first.training.run_round()
    second.training.restore(first.training.state())
    await second.run()
    for name, array in whole.weights.items():
        assert np.array_equal(array, second.weights[name])
    assert told(second, EventKind.REJECTED) == told(whole, EventKind.REJECTED)


@given(st.data())
@settings(max_examples=examples(100))
def test_a_minority_of_liars_never_gets_its_activations_in_and_no_honest_drive_is_refused(data: st.DataObject) -> None:
    screen, size = Screen(), st.floats(0.5, 3.0)
    for _ in range(data.draw(st.integers(1, 5))):
        drives = data.draw(st.integers(3, 7))
        honest = {
            f"csd-{place:02}": {"relu": data.draw(size), "skip": 100 * data.draw(size)} for place in range(drives)
        }
        liars = data.draw(st.sets(st.sampled_from(sorted(honest)), max_size=(drives - 1) // 2))
        # The honest differ by a factor of 6, and what is refused begins at 20 times the largest of them.
        lies = st.sampled_from([200.0, 1e20, math.inf])
        told = honest | {liar: {"relu": 1.0, "skip": honest[liar]["skip"] * data.draw(lies)} for liar in liars}
        refused = screen.judge_activations(told)
        assert set(refused) == liars
        assert {(why.reason, why.tensor) for why in refused.values()} <= {(Reason.NORM, "skip")}
        assert screen.crossing["skip"] <= 300.0


def test_activations_of_few_drives_are_judged_by_the_least_and_by_the_history() -> None:
    screen = Screen()
    assert not screen.judge_activations({"csd-00": {"relu": 1.0}})
    assert not screen.judge_activations({"csd-00": {"relu": 1.0}, "csd-01": {"relu": 5000.0}})
    assert list(screen.judge_activations({"csd-00": {"relu": 2.0}, "csd-01": {"relu": 1e9}})) == ["csd-01"]
    assert not screen.judge_activations({f"csd-{place:02}": {"relu": 2.0} for place in range(3)})
    again = Screen()
    again.load_state(msgspec.json.decode(msgspec.json.encode(screen.state())))
    assert again == screen
    assert list(again.judge_activations({"csd-00": {"relu": 1e6}, "csd-01": {"relu": 2.0}})) == ["csd-00"]


def test_of_two_drives_the_one_with_the_smaller_activations_accuses_nobody() -> None:
    screen = Screen()
    for _ in range(3):
        assert not screen.judge_activations({"csd-00": {"relu": 0.2}, "csd-01": {"relu": 2e-13}})
    assert list(screen.judge_activations({"csd-00": {"relu": 1e9}, "csd-01": {"relu": 2e-13}})) == ["csd-00"]


@pytest.mark.parametrize(("few_factor", "most"), [(NORM_FACTOR, 0.04), (EXPLODING, 20.0)])
def test_few_are_held_against_the_history_of_more_and_move_it_by_a_factor_at_most(
    few_factor: float, most: float
) -> None:
    for size, refused in ((0.9 * most, []), (1.1 * most, ["csd-02"])):
        screen = Screen()
        screen.judge_activations({f"csd-{place:02}": {"sum 2": 0.002} for place in range(3)})
        assert list(screen.judge_activations({"csd-02": {"sum 2": size}}, "", few_factor)) == refused
        assert screen.crossing["sum 2"] == (0.002 if refused else pytest.approx(min(size, NORM_FACTOR * 0.002)))


@pytest.mark.parametrize("lie", [0.0, 1e-9, 5000.0])
def test_what_a_liar_said_while_it_was_alone_is_no_history_for_a_majority(lie: float) -> None:
    screen = Screen()
    screen.judge_activations({"csd-02": {"relu": lie}})
    screen.judge_activations({"csd-02": {"relu": lie}, "csd-00": {"relu": 0.8}})
    for _ in range(2):
        told = {"csd-00": {"relu": 0.8}, "csd-01": {"relu": 0.8}, "csd-02": {"relu": lie}}
        assert list(screen.judge_activations(told)) == (["csd-02"] if lie > 1 else [])
        assert screen.crossing["relu"] == 0.8


@pytest.mark.parametrize("size", [1e5, 1e30, math.inf])
def test_beside_activations_that_are_all_zero_not_everything_is_taken(size: float) -> None:
    screen = Screen()
    told = {"csd-00": {"relu": 0.0}, "csd-01": {"relu": 0.0}, "csd-02": {"relu": size}}
    assert list(screen.judge_activations(told)) == ["csd-02"]
    assert not screen.judge_activations(told | {"csd-02": {"relu": 1.0}})


def test_activations_of_all_that_explode_are_refused_and_nothing_at_all_is_taken() -> None:
    screen = Screen()
    drives = [f"csd-{place:02}" for place in range(4)]
    assert not screen.judge_activations(
        {device: {"relu": 0.0} for device in drives}
    )  # a layer that is dead from the start
    assert not screen.judge_activations({device: {"relu": 1.0} for device in drives})
    assert sorted(screen.judge_activations({device: {"relu": 1e6} for device in drives})) == drives
    assert not screen.judge_activations({device: {"relu": 1.0} for device in drives})
