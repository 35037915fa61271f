"""Published placement beside ours: bytes by the formula, and rows that say what they are."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.profiles.calibration.table_store import SHIPPED, CalibrationStore
from csd_lab.cli.reproduce import print_placement_reproduction
from csd_lab.reproduce.output import write_placement
from csd_lab.reproduce.placement_result import PlacementReport, RanPlacement
from csd_lab.reproduce.reproduce_placement import (
    NOTES,
    describe_traffic,
    first_linear,
    judge_headlines,
    place_one,
    put_beside,
    step_bytes,
)
from csd_lab.reproduce.verdict import UNDECIDABLE
from firmware_agent.common.errors import EnvironmentUnfit
from firmware_agent.common.models import ZOO
from firmware_agent.common.shipped_code import ShippedCode
from host.training.split.layer_exchange import LayerExchange, inspect_layers

STORE = CalibrationStore(SHIPPED)


@pytest.fixture(scope="module")
def report() -> PlacementReport:
    layers = inspect_layers(ShippedCode("mobilenet_v2"), ZOO["mobilenet_v2"].input_shape, LayerExchange(buffers=False))
    rows = [place_one("mobilenet_v2", layers, STORE, drives, 32, rate) for drives in (1, 36) for rate in (2e9, 12.5e6)]
    traffic = [describe_traffic("mobilenet_v2", layers)]
    return PlacementReport("modelled", False, put_beside(rows), traffic, rows, list(NOTES), [], 1.0)


@pytest.mark.slow
def test_traffic_is_the_derived_one(report: PlacementReport) -> None:
    row = report.traffic[0]
    assert row.parameters == 3_504_872
    assert (row.layer, row.crossing_bytes) == ("22", 5120)
    assert row.ratio == pytest.approx(1.55, abs=0.005)
    assert row.counted_ratio is None


@pytest.mark.slow
def test_a_slow_link_moves_the_classifier_and_a_fast_one_nothing(report: PlacementReport) -> None:
    assert [row.layer for row in report.placing] == [None, "22", None, "22"]
    assert all(row.speedup >= 1 for row in report.placing)
    assert max(row.speedup for row in report.placing) == report.beside[0].ours_high
    assert report.beside[0].ours_low == 1


def test_the_linear_layers_are_found() -> None:
    layers = inspect_layers(ShippedCode("digits_cnn"), (1, 8, 8), LayerExchange())
    assert layers[first_linear(layers)].name == "6"


def test_it_is_printed_and_written(report: PlacementReport, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = write_placement(report, tmp_path / "out")
    print_placement_reproduction(written)
    shown = capsys.readouterr().out
    assert "up to 2.3" in shown
    assert "mobilenet_v2" in shown
    assert all(Path(file).stat().st_size for file in written.files)
    decoded = msgspec.json.decode((tmp_path / "out" / "placement.json").read_bytes(), type=PlacementReport)
    assert decoded.placing == report.placing


def test_runs_of_scaled_models_name_their_clock(
    report: PlacementReport, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = RanPlacement("vgg (scaled)", 3, 32, 5, 1e7, 4.0, "fc0", 1.2, 0.6, 2.0, 1.9)
    written = write_placement(msgspec.structs.replace(report, ran=[ran]), tmp_path / "out")
    print_placement_reproduction(written)
    shown = capsys.readouterr().out
    assert "(wall)" in shown
    assert "2.00x" in shown
    assert (tmp_path / "out" / "ran.csv").read_text().splitlines()[1].endswith(",wall")
    assert not report.ran


def test_a_folder_that_cannot_be_written_is_said(report: PlacementReport, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentUnfit, match="--output"):
        write_placement(report, tmp_path / "file")


@given(st.floats(0, 1e9), st.integers(1, 1000), st.floats(0, 1e6), st.floats(0, 1e6))
def test_traffic_grows_with_all_that_it_has(parameters: float, batch: int, crossing: float, more: float) -> None:
    least = step_bytes(parameters, batch, crossing)
    assert step_bytes(parameters + more, batch, crossing) >= least
    assert step_bytes(parameters, batch + 1, crossing) >= least
    assert step_bytes(parameters, batch, crossing + more) >= least


@pytest.mark.parametrize(
    ("parameters", "batch", "activations", "ratio"),
    [
        ((14_714_688, 123_642_856), 32, 25_088, 8.9),
        ((2_469_696, 58_631_144), 128, 9_216, 16.7),
        ((23_508_032, 2_049_000), 32, 2_048, 1.08),
        ((2_223_872, 1_281_000), 32, 1_280, 1.55),
    ],
    ids=["vgg16", "alexnet", "resnet50", "mobilenet_v2"],
)
def test_derived_ratios(parameters: tuple[int, int], batch: int, activations: int, ratio: float) -> None:
    cut = step_bytes(4 * parameters[0], batch, 4 * activations)
    assert step_bytes(4 * sum(parameters), batch, 0) / cut == pytest.approx(ratio, rel=0.005)


def test_headlines_that_nothing_can_be_predicted_for_are_undecidable(report: PlacementReport) -> None:
    verdicts = judge_headlines(report.placing)
    assert [row.source for row in verdicts] == [row.source for row in report.beside]
    assert {row.verdict for row in verdicts} == {UNDECIDABLE}
    for row, beside in zip(verdicts, report.beside, strict=True):
        assert f"{beside.ours_low:.2f} to {beside.ours_high:.2f} over ours" in row.reason
        assert beside.published.endswith(f"{row.published:g}")
