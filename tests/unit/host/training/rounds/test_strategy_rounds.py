"""What strategies see of drives, and how their metrics and client programs' states are kept."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_agent.common.errors import PluginFailed
from host.config.participation import RoundSelection
from host.policies.aggregation import Contribution, DriveHistory, FedAvg
from host.training.rounds.strategy_rounds import StrategyRounds, flatten_states, mean_metrics, split_states
from tests.support.examples import examples


class Asking(FedAvg):
    """Notes what it is told, and asks all."""

    def __init__(self) -> None:
        self.seen: list[Mapping[str, DriveHistory]] = []

    def configure(self, _: int, drives: Mapping[str, DriveHistory]) -> dict[str, dict[str, Any]]:
        self.seen.append(drives)
        return {name: {} for name, drive in drives.items() if drive.chosen}

    def evaluate(self, number: int, _: object) -> object:
        return {"number": number} if number < 3 else number


CHOICE = RoundSelection(("b", "a"), ("c",))


def part(device: str, samples: int = 1, **metrics: float) -> Contribution:
    return Contribution({}, samples, 1, device, {}, metrics, 0.5, {"forward": 1.0, "update": 0.5}, 7.0)


def test_a_strategy_that_does_not_ask_leaves_the_choice_as_it_is() -> None:
    assert StrategyRounds(FedAvg(), "fedavg").plan(1, "abc", CHOICE, {"a": 1}, False) == (CHOICE, {})


def test_a_strategy_knows_who_is_there_who_was_chosen_and_what_they_did_also_after_a_checkpoint() -> None:
    asking = Asking()
    rounds = StrategyRounds(asking, "mine")
    choice, said = rounds.plan(1, ["a", "b", "c"], CHOICE, {"a": 5, "c": 6}, False)
    assert choice == RoundSelection(("a", "b"), ())  # who is gone is lost, not idle
    assert said.keys() == {"a"}
    first = asking.seen[0]
    assert [(each.device, each.samples, each.chosen, each.rounds) for each in first.values()] == [
        ("a", 5, True, 0),
        ("c", 6, False, 0),
    ]
    assert math.isnan(first["a"].joules)
    rounds.note([part("a")])
    other = StrategyRounds(Asking(), "mine")
    other.load_state(rounds.state())
    other.plan(2, ["a"], CHOICE, {"a": 5}, False)
    assert other.strategy.seen == [{"a": DriveHistory("a", 5, True, 1, 1.5, 7.0, 0.5)}]  # type: ignore[attr-defined]


def test_others_stand_in_for_a_strategy_when_none_of_the_chosen_is_there() -> None:
    choice, said = StrategyRounds(Asking(), "mine").plan(1, ["a", "b", "c"], CHOICE, {"c": 6}, False)
    assert list(said) == ["c"]
    assert choice.chosen[0] == "c"


@settings(max_examples=examples(30))
@given(st.lists(st.tuples(st.integers(1, 9), st.floats(-5, 5)), min_size=1, max_size=5))
def test_metrics_of_programs_are_means_by_samples(told: list[tuple[int, float]]) -> None:
    found = mean_metrics([part("a", samples, loss=0.1, seen=value) for samples, value in told])
    assert found.keys() == {"train_seen"}
    assert found["train_seen"] == pytest.approx(np.average([v for _, v in told], weights=[n for n, _ in told]))


def test_a_strategys_own_metrics_are_numbers() -> None:
    rounds = StrategyRounds(Asking(), "mine")
    assert rounds.metrics(2, {}, [part("a", seen=2)]) == {"train_seen": 2.0, "number": 2.0}
    with pytest.raises(PluginFailed, match="evaluate returned int"):
        rounds.metrics(3, {}, [])


def test_states_of_programs_come_back_out_of_a_checkpoint_beside_the_strategys() -> None:
    states = {"csd-00": {"state/a/b": np.ones(2)}, "csd-01": {"state/n": np.zeros(())}}
    kept = {"m/w": np.ones(3)} | flatten_states(states)
    assert split_states(kept) == ({"m/w": kept["m/w"]}, states)


def test_a_number_that_is_called_so_already_has_no_second_prefix() -> None:
    assert mean_metrics([part("a", train_acc=1.0, norm=2.0)]) == {"train_acc": 1.0, "train_norm": 2.0}
    assert mean_metrics([part("a", train_x=1.0, x=2.0)]) == {"train_train_x": 1.0, "train_x": 2.0}


def test_a_programs_loss_is_not_called_as_the_rounds_own() -> None:
    assert mean_metrics([part("a", loss=1.0, train_loss=7.0)]) == {"train_train_loss": 7.0}
