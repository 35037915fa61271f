import pytest

from csd_lab.bench.emulation import DIGITS, IMAGES, _held_out
from firmware_agent.common.models import ZOO
from tests.support.calibration import make_table

LINE = {batch: 0.1 + 0.2 * batch for batch in (2, 4, 8)}


def test_the_largest_batch_is_compared_with_a_table_that_has_not_seen_it() -> None:
    assert _held_out(make_table(LINE))["error"] == pytest.approx(0, abs=1e-9)
    spoilt = _held_out(make_table(LINE | {8: 2 * LINE[8]}))
    assert spoilt["held_out_batch"] == 8
    assert spoilt["error"] == pytest.approx(-0.5)
    assert spoilt["error"] == pytest.approx(
        sum(spoilt["foretold_seconds"].values()) / sum(spoilt["measured_seconds"].values()) - 1
    )
    assert [row["batch_size"] for row in spoilt["rows"]] == [2, 4, 8]


def test_the_bench_has_four_models_with_two_batches_beside_the_largest() -> None:
    cases = (*DIGITS, *IMAGES)
    assert len({name for name, _ in cases} & set(ZOO)) == len(cases) == 4
    assert all(len(batches) >= 3 and list(batches) == sorted(set(batches)) for _, batches in cases)
