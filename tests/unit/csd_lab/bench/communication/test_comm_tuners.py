import numpy as np
import pytest

from csd_lab.bench.communication import comm_cases, comm_tuners
from csd_lab.bench.communication.comm_cases import MODELS
from csd_lab.bench.communication.comm_tuners import (
    CONTENDERS,
    NOT_LOST,
    OCTAVES,
    OWN,
    SETTLED,
    retune_steps,
    settle_steps,
    setup,
)
from csd_lab.generate.autobyte.tuner_scenario import BandwidthProcess, BandwidthTrace
from host.policies.transfer.speedup_predictor import SimulatedSettings


def test_the_link_at_its_best_takes_a_quarter_of_the_computing() -> None:
    for model in MODELS:
        known = setup(model)
        best = known.link_at(8 * OCTAVES)
        assert best.bytes_per_second == pytest.approx(comm_tuners.BEST_BYTES_PER_SECOND)
        size = sum(layer.size_bytes for layer in known.costs)
        compute = sum(layer.forward_seconds + layer.backward_seconds for layer in known.costs)
        assert known.drives * size / best.bytes_per_second == pytest.approx(0.25 * compute)


def test_what_is_shown_as_autobyte_is_what_a_run_gets() -> None:
    assert CONTENDERS[OWN].predictor().name == SimulatedSettings().name == OWN


def test_retuning_ends_with_the_last_step_that_is_too_long() -> None:
    trace = BandwidthTrace(np.zeros(60, np.int64), np.array([0, 20, 31, 40, 40]))
    over = np.full(60, 0.99 * SETTLED)
    over[[20, 21, 22, 32]] = 1.01 * SETTLED
    over[40:] = 1.01 * NOT_LOST  # never retuned
    assert retune_steps(over, trace) == settle_steps(over, trace) == [0, 3, 2, 0, 20]


def test_a_choice_that_stays_a_little_worse_is_no_late_one_but_no_good_one_either() -> None:
    trace = BandwidthTrace(np.zeros(40, np.int64), np.array([0, 20]))
    over = np.full(40, 1.03)
    over[[20, 21]] = 1.03 * 1.01 * SETTLED
    assert settle_steps(over, trace) == [0, 2]
    assert retune_steps(over, trace) == [20, 20]


@pytest.mark.long
def test_all_figures_come_out_and_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one model, two cases and short traces."""
    monkeypatch.setattr(comm_tuners, "MODELS", MODELS[1:2])
    monkeypatch.setattr(comm_cases, "CASES", comm_cases.CASES[4:5])
    monkeypatch.setattr(comm_tuners, "OCTAVES", 4.0)
    monkeypatch.setattr(comm_tuners, "TRACE_PROCESS", BandwidthProcess(steps=60, mean_gap_steps=20, octaves=4.0))
    monkeypatch.setattr(
        comm_tuners, "STEPS_ONLY", BandwidthProcess(60, 20.0, burst_gap_steps=np.inf, walk=0.0, octaves=4.0)
    )
    monkeypatch.setattr(comm_tuners, "CONSTANT_STEPS", 30)
    monkeypatch.setattr(comm_tuners, "CONTENDERS", {OWN: comm_tuners.PredictorContender(SimulatedSettings, 1)})
    for name in ("STEPS_TRACES", "CONSTANT_TRACES"):
        monkeypatch.setattr(comm_tuners, name, 1)
    first, samples = comm_tuners.figures(5, processes=1)
    again, _ = comm_tuners.figures(5, processes=1)
    assert set(first) == {
        "search_over_default_mean",
        "autobyte_share_of_oracle_gain",
        "autobyte_over_best_static_changing",
        "autobyte_over_best_static_constant",
        "retune_steps_max",
        "settle_steps_max",
        "tuner_cpu_share",
    }
    assert {name: first[name] for name in first if name != "tuner_cpu_share"} == {
        name: again[name] for name in again if name != "tuner_cpu_share"
    }
    assert first["autobyte_share_of_oracle_gain"] <= 1
    assert first["search_over_default_mean"] > 1
    assert set(samples) >= {
        "search",
        "autobyte",
        "predictors_on_first_traces",
        "constant",
        "retune_steps",
        "weather",
        "noise",
    }
