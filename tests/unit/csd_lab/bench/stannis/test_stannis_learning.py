import pytest

from csd_lab.bench.stannis import stannis_learning as learning
from csd_lab.bench.stannis.stannis_learning import Learnt


def test_the_array_is_one_in_which_the_host_stands_at_its_limit() -> None:
    chosen, knee = learning.plans()
    assert chosen.batches[-1] == knee.batches[-1] == learning.LARGEST
    assert 3 in knee.bounded
    assert chosen.batches.sum() < knee.batches.sum()


def test_gains_are_of_records_over_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times the records until the target with the larger batch, three with the rate scaled."""
    chosen, _ = learning.plans()
    batch = int(chosen.batches.sum())

    def learn(global_batch: int, seed: int, learning_rate: float) -> Learnt:
        if global_batch == batch:
            return Learnt(100.0, 0.9)
        return Learnt(400.0, 0.95) if learning_rate == learning.LEARNING_RATE else Learnt(300.0, 0.8)

    monkeypatch.setattr(learning, "learn", learn)
    found = learning.compare_learning((0, 1))
    assert found["learning_time_gain"] == pytest.approx(4 * found["learning_rate_gain"])
    assert found["learning_time_gain_best"] == pytest.approx(3 * found["learning_rate_gain"])
    assert found["learning_accuracy_lost"] == pytest.approx(0.05)


def test_a_run_reaches_what_can_be_learnt_and_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "RECORDS", 6000)
    monkeypatch.setattr(learning, "LOOKS", 20)
    run = learning.learn(32, 1)
    assert run == learning.learn(32, 1)
    assert run.accuracy > 0.8
    monkeypatch.setattr(learning, "TARGET_LOSS", 0.0)
    assert learning.learn(512, 1).target_records == float("inf")
