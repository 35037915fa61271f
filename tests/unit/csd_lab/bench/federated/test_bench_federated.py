import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from csd_lab.bench.federated import bench_federated as bench
from csd_lab.bench.federated import federated_jobs as jobs
from csd_lab.bench.federated.federated_development_seeds import DEVELOPMENT_SEEDS
from csd_lab.bench.federated.federated_final_seeds import FINAL_SEEDS
from host.config.job_file import JobConfig
from host.policies.aggregation import check_drives, make_strategy


def row(seed: int, alpha: float, strategy: str, rounds: float, reached: bool = True) -> dict[str, Any]:
    costs = {"rounds": rounds, "seconds": rounds / 10, "joules": rounds * 20}
    return {"seed": seed, "alpha": alpha, "strategy": strategy, "reached": reached, **costs}


def test_no_seed_of_the_final_figures_is_one_of_the_development() -> None:
    assert not set(FINAL_SEEDS) & set(DEVELOPMENT_SEEDS)
    assert len(set(FINAL_SEEDS)) == 10


@pytest.mark.parametrize("strategy", jobs.STRATEGIES)
def test_every_job_can_be_run_with_the_drives_that_there_are(strategy: str) -> None:
    job = JobConfig.model_validate({"model": "digits_cnn", "data": {"source": "digits"}} | jobs.job_keys(strategy))
    made = make_strategy(job.strategy, job.momentum, ["w"])
    check_drives(made, strategy, 10)
    assert job.strategy.name == strategy
    assert job.learning_rate == jobs.LEARNING_RATE


@given(st.lists(st.integers(1, 60), min_size=2, max_size=10), st.floats(0.1, 10))
def test_a_strategy_that_costs_a_share_of_fedavgs_on_every_seed_has_that_ratio_without_doubt(
    rounds: list[int], share: float
) -> None:
    rows = [row(seed, 0.3, "fedavg", own) for seed, own in enumerate(rounds)]
    rows += [row(seed, 0.3, "fedprox", own * share) for seed, own in enumerate(rounds)]
    random.Random(1).shuffle(rows)
    figures = bench.summarise(rows)
    assert figures["fedavg_rounds_alpha_0.3"] == pytest.approx(sum(rounds) / len(rounds))
    assert figures["fedavg_joules_alpha_0.3"] == pytest.approx(20 * sum(rounds) / len(rounds))
    for cost in bench.COSTS:
        for end in ("", "_low", "_high"):
            assert figures[f"fedprox_{cost}_alpha_0.3{end}"] == pytest.approx(share)


def test_runs_are_paired_by_seed_within_their_alpha() -> None:
    rows = [
        *(row(1, 0.3, "fedavg", 10), row(2, 0.3, "fedavg", 40)),
        *(row(2, 0.3, "fedadam", 20), row(1, 0.3, "fedadam", 20)),
        *(row(1, 100.0, "fedavg", 5), row(2, 100.0, "fedavg", 5)),
        *(row(1, 100.0, "fedadam", 20, reached=False), row(2, 100.0, "fedadam", 20)),
    ]
    figures = bench.summarise(rows)
    assert figures["fedadam_rounds_alpha_0.3"] == pytest.approx(1.0)  # twice as dear on one, half on the other
    assert figures["fedadam_rounds_alpha_0.3_low"] < 1 < figures["fedadam_rounds_alpha_0.3_high"]
    assert figures["fedadam_rounds_alpha_100"] == pytest.approx(4.0)
    assert figures["fedadam_reached_alpha_100"] == 0.5
    assert figures["fedadam_reached_alpha_0.3"] == figures["fedavg_reached_alpha_100"] == 1.0


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=10))
def test_the_interval_holds_its_middle_and_turns_over_with_the_ratios(ratios: list[float]) -> None:
    found, turned = (bench.ratio_figures("r", each) for each in (ratios, [1 / one for one in ratios]))
    assert found["r_low"] <= found["r"] * (1 + 1e-9)
    assert found["r"] <= found["r_high"] * (1 + 1e-9)
    assert min(ratios) * (1 - 1e-9) <= found["r"] <= max(ratios) * (1 + 1e-9)
    assert math.log(turned["r_low"]) == pytest.approx(-math.log(found["r_high"]), abs=1e-6)


def test_threads_of_torch_are_as_before_whatever_happens_inside() -> None:
    before = torch.get_num_threads()

    def fail() -> None:
        with bench.one_thread():
            assert torch.get_num_threads() == 1
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    assert torch.get_num_threads() == before
