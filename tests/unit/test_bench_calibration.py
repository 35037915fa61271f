import pytest

from firmware_agent.models import ZOO, ModelSpec
from host.bench.calibration import CLASSES, DIGITS, DIGITS_SHAPE, IMAGES, IMAGES_SHAPE, _held_out
from host.calibration_request import make_request
from tests.calibration import make_table

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


@pytest.mark.parametrize(("shape", "cases"), [(DIGITS_SHAPE, DIGITS), (IMAGES_SHAPE, IMAGES)])
def test_the_bench_asks_for_what_its_models_can_do(
    shape: tuple[int, int, int], cases: tuple[tuple[str, tuple[int, ...]], ...]
) -> None:
    for name, batches in cases:
        request = make_request(ModelSpec(name, None, {"num_classes": CLASSES}), shape, batches)
        assert request.facts.classes == CLASSES
        assert request.machine_bytes == 2 << 30  # one template for all
    assert len({name for name, _ in (*DIGITS, *IMAGES)} & set(ZOO)) == 4
