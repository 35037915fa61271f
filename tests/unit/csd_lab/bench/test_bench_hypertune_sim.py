import numpy as np
import pytest

from csd_lab.bench.training import bench_hypertune_sim as hypertune_sim
from csd_lab.bench.training.bench_hypertune_sim import _chunk, _join, _summary, contenders, scenario
from csd_lab.simulate.slowdown_traces import SlowdownProcess


def test_the_array_has_the_size_that_is_promised_and_finishes_together() -> None:
    known = scenario()
    assert len(known.batches) == 37
    assert (known.batches[:36] == 32).all()
    seconds = [table.seconds(int(batch)) for table, batch in zip(known.tables, known.batches, strict=True)]
    assert min(seconds) >= 0.98 * max(seconds)
    assert known.batches[36] > 10 * 32
    assert 0 < known.sync_seconds < 0.1 * max(seconds)


def test_seconds_are_of_cycles_and_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    described = hypertune_sim._describe()
    assert described["core_model"] == "cycles"
    monkeypatch.setattr(hypertune_sim, "CORE_MODEL", "instructions")
    scenario.cache_clear()
    try:
        counted = hypertune_sim._describe()
    finally:
        scenario.cache_clear()
    assert counted["core_model"] == "instructions"
    # A Cortex-A53 needs more than a cycle for an instruction, and the profile assumes less than two.
    assert described["compute_seconds"]["drive"] > 1.2 * counted["compute_seconds"]["drive"]


@pytest.mark.slow
def test_chunks_do_not_change_what_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hypertune_sim, "TRACE_PROCESS", SlowdownProcess(steps=120, mean_gap_steps=20))
    monkeypatch.setattr(hypertune_sim, "VARIANT_TRACES", 2)
    parts = [_chunk((3, 0, 2)), _chunk((3, 2, 1))]
    joined = _join(parts)
    whole = _join([_chunk((3, 0, 3))])
    for name in contenders():
        count = 3 if name in parts[1] else 2
        assert joined[name]["rate"] == pytest.approx(whole[name]["rate"][:count])
        assert _summary(joined[name], joined)["traces"] == count
    assert set(contenders()) - set(parts[1]) == {name for name, one in contenders().items() if one.traces == 2}
    own = _summary(joined["hypertune"], joined)
    rates = np.array(joined["hypertune"]["rate"]) / joined["oracle"]["rate"]
    assert own["mean_over_oracle"] == pytest.approx(rates.mean())
    assert own["worst_over_oracle"] <= own["mean_over_oracle"] <= 1
    assert _summary(joined["static"], joined)["at_least_static"] == 1
    assert _summary(joined["equal"], joined)["mean_over_oracle"] < own["mean_over_oracle"]
