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

from firmware_agent.errors import Diverged
from firmware_agent.exchange import Array
from firmware_agent.wire import PhaseSeconds, Train, Trained
from host.records import What
from host.scanning import Scan, scan_update, squares
from host.screening import NORM_FACTOR, Dealt, Part, Reason, Refusal, Screen, reason_of
from tests.fakes import Answer, FakeDrive
from tests.unit.test_federated import Run

FLOATS = st.sampled_from(["float16", "float32", "float64"])
BACK = "it takes part again once it has dialled anew"
SECONDS = PhaseSeconds(0.1, 0.2, 0.05, 0.01)


def part(device: str, norm: float = 1.0, **said: Any) -> Part:
    fields: dict[str, Any] = {"round": 1, "samples": 10, "steps": 2, "loss": 0.5, "seconds": SECONDS, "read_bytes": 640}
    trained = Trained(**(fields | said))
    return Part(device, Dealt(10, 2), trained, trained.steps, Scan(norm), "counted")


@given(st.data(), FLOATS, st.integers(0, 20_000))
@settings(max_examples=60)
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
    assert scan_update(new, start, {"mean", "n"}) == Scan(pytest.approx(math.sqrt(12)), pytest.approx(math.sqrt(50)))
    new["mean"][1] = np.nan
    assert scan_update(new, start, {"mean", "n"}).bad == "mean"


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
    (Reason.LOSS, {"loss": -1.0}),
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


@given(st.data())
@settings(max_examples=200)
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
            parts.append(Part(f"csd-{number}", Dealt(size, steps), said, steps, Scan(norm), "wall"))
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


@given(st.data())
@settings(max_examples=100)
def test_a_minority_of_liars_moves_the_limit_by_nothing(data: st.DataObject) -> None:
    screen, honest = Screen(), [part(f"csd-{n}", 1.0 + n / 10) for n in range(data.draw(st.integers(3, 8)))]
    liars = (len(honest) - 1) // 2
    for _ in range(10):
        parts = honest + [part(f"liar-{n}", data.draw(st.floats(0, 1e30))) for n in range(liars)]
        refused = screen.judge(parts)
        assert not set(refused) & {each.device for each in honest}
        assert screen.norm <= 1.8
    assert [*screen.judge([*honest, part("liar", 1.8 * NORM_FACTOR + 1)])] == ["liar"]


def test_modelled_seconds_are_not_looked_at() -> None:
    odd = [msgspec.structs.replace(part("x").said, seconds=PhaseSeconds(value)) for value in (0.0, 1e-9, 1e12)]  # type: ignore[type-var]
    parts = [Part(f"csd-{n}", Dealt(10, 2), said, 2, Scan(1.0), "modelled") for n, said in enumerate(odd)]
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


def told(run: Run, what: What) -> list[tuple[str, str]]:
    return [(record.device, record.detail) for record in run.records if getattr(record, "what", None) is what]


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
    rejected = told(run, What.REJECTED)
    assert [device for device, _ in rejected] == ["liar"] * 3
    assert all(f"in round {number}: " in detail for number, (_, detail) in enumerate(rejected, 1))
    assert {str(reason_of(detail)) for _, detail in rejected} == {reason}
    assert told(run, What.SET_ASIDE) == [
        ("liar", "refused 3 times running; it takes part again once it has dialled anew")
    ]
    diverging = told(run, What.DIVERGING)
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
    ((device, detail),) = told(run, What.DIVERGING)
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
    assert "host" in {device for device, _ in told(run, What.DIVERGING)}


async def test_a_strategy_that_makes_no_finite_weights_is_named_and_the_old_ones_stay() -> None:
    run = Run(FakeDrive("csd-00"), FakeDrive("csd-01"), rounds=2)
    run.training._strategy.aggregate = lambda weights, _: {n: a * np.float32(math.inf) for n, a in weights.items()}  # type: ignore[assignment, method-assign]
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
    assert told(second, What.REJECTED) == told(whole, What.REJECTED)
