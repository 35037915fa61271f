import numpy as np
import pytest

from csd_lab.bench.stannis import bench_stannis_world as world
from csd_lab.bench.stannis.stannis_development_seeds import DEVELOPMENT_SEEDS
from csd_lab.bench.stannis.stannis_final_seeds import FINAL_SEEDS


def test_no_seed_of_the_final_figures_is_one_of_the_development() -> None:
    assert not set(FINAL_SEEDS) & set(DEVELOPMENT_SEEDS)
    assert len(set(FINAL_SEEDS)) == 10


def test_cases_are_judged_by_the_true_curves_and_nobody_beats_the_best() -> None:
    rows = world.judge_seed(DEVELOPMENT_SEEDS[0], 12)
    assert any(row["limited"] for row in rows)
    for row in rows:
        assert all(1 <= batch <= limit for batch, limit in zip(row["batches"], row["limits"], strict=True))
        for name in ("over_best", "over_best_measured", "equal_over_best"):
            assert 0 < row[name] <= 1 + 1e-9
        assert row["over_best_with_idle"] <= row["over_best"] + 1e-9
        assert row["over_best_any_batch"] <= row["over_best"] + 1e-9
    assert world.judge_seed(DEVELOPMENT_SEEDS[0], 3) == rows[:3]


@pytest.mark.parametrize("batch", [1, 64])
def test_a_tuner_that_ignores_speeds_is_seen(monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    monkeypatch.setattr(world, "_plan", lambda array, seconds: [min(batch, len(own)) for own in seconds])
    rows = [world.judge(generator) for generator in np.random.default_rng(3).spawn(20)]
    assert np.mean([row["over_best"] for row in rows]) < 0.6


def test_figures_are_means_of_their_cases_and_the_lower_ends_lie_below() -> None:
    names = ("over_best_measured", "equal_over_best", "over_best_any_batch", "over_best_with_idle")
    rows = [
        {"seed": number % 2, "limited": number % 3 == 0, "over_best": 1 - number / 100} | dict.fromkeys(names, 0.5)
        for number in range(30)
    ]
    figures = world.summarise(rows)
    limited = [row["over_best"] for row in rows if row["limited"]]
    assert figures["over_best_limited"] == pytest.approx(np.mean(limited))
    assert figures["over_best_limited_low"] < figures["over_best_limited"]
    assert figures["worst"] == pytest.approx(0.71)
    assert figures["worst_of_seed_mean"] == pytest.approx((0.71 + 0.72) / 2)
    assert figures["cases_limited"] == len(limited)
