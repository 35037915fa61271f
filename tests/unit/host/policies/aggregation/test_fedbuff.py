"""Laws of FedBuff: what is taken when, by device time alone, and how much a stale update counts."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_agent.common.errors import CheckpointError, ConfigurationError
from firmware_agent.common.slices import Array
from host.policies.aggregation import Contribution, DriveHistory, FedBuff, check_drives
from tests.support.examples import examples

seconds = st.lists(st.floats(0.125, 8, width=16), min_size=2, max_size=6)


def drive_rounds(
    strategy: FedBuff, costs: list[float], weights: dict[str, Array], rounds: int
) -> tuple[dict[str, Array], list[float]]:
    """Return the weights, and how long each round took; drive i takes costs[i] seconds and moves w by i + 1."""
    lengths = []
    for number in range(1, rounds + 1):
        drives = {f"csd-{i:02}": DriveHistory(f"csd-{i:02}", 10) for i in range(len(costs))}
        parts = []
        for device in strategy.configure(number, drives):
            place = int(device[-2:])
            trained = {"w": weights["w"] + place + 1, "seen": weights["seen"] + 1}
            parts.append(Contribution(trained, 10, 1, device, finish_seconds=costs[place]))
        lengths.append(strategy.round_seconds({part.device: part.finish_seconds for part in parts}))
        weights = strategy.aggregate(weights, parts)
    return weights, lengths


def start() -> dict[str, Array]:
    return {"w": np.zeros(2), "seen": np.asarray(0)}


@settings(max_examples=examples(60))
@given(seconds, st.integers(1, 6), st.integers(1, 12))
def test_steps_are_the_events_of_a_simulation_in_device_time(costs: list[float], buffer: int, rounds: int) -> None:
    weights, lengths = drive_rounds(FedBuff(buffer, parameters={"w"}), costs, start(), rounds)
    # Told as events: (when it is done, drive, step that it began from).
    now, value, ends = 0.0, 0.0, []
    working = [(cost, place, 0) for place, cost in enumerate(costs)]
    for step in range(rounds):
        working.sort()
        taken, working = working[:buffer], working[buffer:]
        now = taken[-1][0]
        value += sum((place + 1) / math.sqrt(1 + step - begun) for _, place, begun in taken) / len(taken)
        working += [(now + costs[place], place, step + 1) for _, place, _ in taken]
        ends.append(now)
    np.testing.assert_allclose(weights["w"], value, rtol=1e-9)
    np.testing.assert_allclose(np.cumsum(lengths), ends, rtol=1e-9)


@settings(max_examples=examples(30))
@given(seconds, st.integers(1, 4), st.integers(1, 5), st.integers(1, 5))
def test_a_run_goes_on_from_its_state_to_the_bit(costs: list[float], buffer: int, before: int, after: int) -> None:
    whole, _ = drive_rounds(FedBuff(buffer, parameters={"w"}), costs, start(), before + after)
    first, other = FedBuff(buffer, parameters={"w"}), FedBuff(buffer, parameters={"w"})
    weights, _ = drive_rounds(first, costs, start(), before)
    other.load_state({name: array.copy() for name, array in first.state().items()})
    weights, _ = drive_rounds(other, costs, weights, after)
    assert {name: array.tobytes() for name, array in weights.items()} == {n: a.tobytes() for n, a in whole.items()}


def test_without_anybody_late_it_is_the_mean_and_the_slowest_ends_the_round() -> None:
    weights, lengths = drive_rounds(FedBuff(3, parameters={"w"}), [1.0, 2.0, 4.0], start(), 2)
    assert weights["w"].tolist() == [4.0, 4.0]
    assert lengths == [4.0, 4.0]
    assert int(weights["seen"]) == 2


def test_a_drive_that_is_at_work_is_not_asked_and_everybody_is_if_nobody_else_is_there() -> None:
    strategy = FedBuff(1, parameters={"w"})
    drives = {name: DriveHistory(name, 10) for name in ("a", "b")}
    parts = [Contribution(start(), 10, 1, name, finish_seconds=cost) for name, cost in (("a", 1.0), ("b", 9.0))]
    strategy.aggregate(start(), parts)
    assert list(strategy.configure(2, drives)) == ["a"]
    assert list(strategy.configure(2, {"b": drives["b"]})) == ["b"]
    assert strategy.evaluate(2, start()) == {"staleness": 0.0, "in_flight": 1.0}


def test_it_asks_no_more_than_were_chosen_and_needs_as_many_as_it_waits_for() -> None:
    strategy = FedBuff(1, parameters={"w"})
    parts = [Contribution(start(), 10, 1, f"csd-{n}", finish_seconds=float(n)) for n in range(3)]
    strategy.aggregate(start(), parts)  # csd-1 and csd-2 are at work
    drives = {f"csd-{n}": DriveHistory(f"csd-{n}", 10, chosen=n in (1, 2)) for n in range(9)}
    assert list(strategy.configure(2, drives)) == ["csd-0", "csd-3"]
    assert list(strategy.configure(2, {name: drives[name] for name in ("csd-1", "csd-2")})) == ["csd-1", "csd-2"]
    with pytest.raises(ConfigurationError, match="fedbuff: needs the weights of 4 drives in a round, and 3 take part"):
        check_drives(FedBuff(4, parameters={"w"}), "fedbuff", 3)


def test_a_state_of_another_strategy_is_refused() -> None:
    with pytest.raises(CheckpointError, match="not that of this strategy"):
        FedBuff(parameters={"w"}).load_state({"m/w": np.zeros(2)})
