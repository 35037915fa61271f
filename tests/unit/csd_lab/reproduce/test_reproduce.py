import csv
import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from csd_emu.perfmodel.power import PUBLISHED
from csd_emu.profiles.calibration import CalibrationStore
from csd_emu.util.progress import Silent
from csd_lab.reproduce.blind_inputs import load_inputs
from csd_lab.reproduce.blind_prediction import FIGURES, RATIO, predict
from csd_lab.reproduce.blind_server import DRIVES, TUNING, BlindServer, middle_of, model_load
from csd_lab.reproduce.hypertune_result import DisturbanceFigures, HypertuneReport, Prediction, Scaling
from csd_lab.reproduce.output import write_hypertune
from csd_lab.reproduce.reproduce_hypertune import drive_batches, host_shares, judge_all, put_beside, reproduce_hypertune
from csd_lab.reproduce.reproduce_placement import reproduce_placement
from csd_lab.reproduce.scaling import (
    COMPUTE_ONLY,
    DRIVE_COUNTS,
    KNEE,
    LOST,
    STANNIS,
    describe_input,
    disturb_node,
    scale,
    vary_batch,
)
from csd_lab.reproduce.traffic import traffic_needs
from csd_lab.reproduce.verdict import NOT_REPRODUCED, UNDECIDABLE
from csd_lab.simulate.nodes import Nodes
from csd_lab.simulate.tree import array_tree
from csd_lab.simulate.tuners import plan
from firmware_agent.common.errors import EnvironmentUnfit

STORE = CalibrationStore(Path("/nonexistent"))
MODEL = "squeezenet"
INPUTS = load_inputs()
SERVER = BlindServer(MODEL, STORE, INPUTS)
AT = middle_of(SERVER.bands)


@pytest.fixture(scope="module")
def predictions() -> list[Prediction]:
    return list(predict(SERVER))


@pytest.fixture(scope="module")
def servers(predictions: list[Prediction]) -> list[Nodes]:
    """The server over the predicted band, for one model of the zoo at full size."""
    worth = predictions[FIGURES.index(RATIO)]
    return [SERVER.nodes(AT, ratio) for ratio in (worth.low, worth.middle, worth.high)]


@pytest.fixture(scope="module")
def scaling(servers: list[Nodes]) -> list[Scaling]:
    return [row for nodes in servers for row in scale(nodes)]


@pytest.fixture(scope="module")
def disturbed(servers: list[Nodes]) -> list[DisturbanceFigures]:
    nodes = servers[1]
    batches = plan(array_tree(nodes), TUNING)
    return [disturb_node(nodes, batches, number, lost) for number in (DRIVES, 0) for lost in LOST]


def test_every_row_follows_from_bytes_seconds_and_watts(scaling: list[Scaling]) -> None:
    load = model_load(MODEL)
    for begin in range(0, len(scaling), len(DRIVE_COUNTS)):
        rows = scaling[begin : begin + len(DRIVE_COUNTS)]
        alone = rows[0]
        assert [row.drives for row in rows] == list(DRIVE_COUNTS)
        assert (alone.speedup, alone.energy_factor, alone.link_bytes_per_record) == (1, 1, load.record_bytes)
        for row in rows[1:]:
            records = row.drives * row.drive_batch + row.host_batch
            crossed = 2 * row.drives * load.state_bytes + row.host_batch * load.record_bytes
            assert row.link_bytes_per_record == pytest.approx(crossed / records)
            assert row.records_per_second == pytest.approx(records / row.step_seconds)
            assert row.speedup == pytest.approx(row.records_per_second / alone.records_per_second)
            assert row.energy_factor == pytest.approx(alone.joules_per_record / row.joules_per_record)
            assert row.watts == pytest.approx(row.joules_per_record * row.records_per_second)
            assert row.energy_factor == pytest.approx(row.speedup * alone.watts / row.watts)
            assert row.speedup < (1 + row.drives / row.ratio) / 0.998
            assert 0 < row.exchange_seconds < row.step_seconds


def test_more_drives_and_a_slower_host_give_a_larger_speedup(scaling: list[Scaling]) -> None:
    by_ratio: dict[float, list[float]] = {}
    for row in scaling:
        by_ratio.setdefault(row.ratio, []).append(row.speedup)
    low, middle, high = (by_ratio[ratio] for ratio in sorted(by_ratio))
    for speedups in (low, middle, high):
        assert speedups[2:] == sorted(speedups[2:])
    assert all(fast > slow for fast, slow in zip(low[2:], high[2:], strict=True))


def test_no_figure_rests_on_more_than_calibration_has_measured(servers: list[Nodes]) -> None:
    for nodes in servers:
        for kind in nodes.kinds:
            assert kind.costs.micro_batch <= max(kind.costs.memory.table.batches)
            assert kind.costs.covered
    facts = describe_input(SERVER, AT)
    assert facts.measured_batches == servers[0].kinds[0].costs.memory.table.batches
    assert not facts.batch_statistics
    assert facts.basis == "emulated"
    assert facts.cycles == SERVER.cycles.basis


def test_larger_batches_leave_less_of_a_step_to_the_exchange(servers: list[Nodes]) -> None:
    rows = list(vary_batch(servers[1]))
    figures = [row.figures for row in rows]
    assert [row.drive_batch for row in figures] == sorted({row.drive_batch for row in figures})
    shares = [row.exchange_seconds / row.step_seconds for row in figures]
    assert shares == sorted(shares, reverse=True)
    traffic = [row.link_bytes_per_record for row in figures]
    assert traffic == sorted(traffic, reverse=True)
    chosen = {name: row.figures for row in rows for name in row.chosen.split(", ") if name}
    assert set(chosen) == {KNEE, COMPUTE_ONLY, STANNIS}
    assert chosen[STANNIS].speedup > chosen[COMPUTE_ONLY].speedup >= chosen[KNEE].speedup


@pytest.mark.slow
def test_hypertune_stays_near_the_ceiling_and_comes_back(disturbed: list[DisturbanceFigures]) -> None:
    for row in disturbed:
        assert row.ceiling == pytest.approx((1 - row.lost * row.share) * row.before)
        assert 0.98 * row.ceiling <= row.retuned <= 1.005 * row.ceiling
        assert row.during_without < row.during_with <= row.retuned
        assert row.during_with <= row.before
        assert row.recovered == pytest.approx(row.before)
        assert row.recovered >= row.after > 0.98 * row.before
        assert row.before_joules < row.during_with_joules < row.during_without_joules
        assert row.detect_steps is not None
        assert row.recover_steps is not None
        assert max(row.detect_steps, row.recover_steps) <= 8
    assert {row.node for row in disturbed} == {"host", "csd-00"}


def test_every_headline_is_judged_by_the_predicted_band(scaling: list[Scaling], predictions: list[Prediction]) -> None:
    needs = list(traffic_needs(host_shares(scaling), drive_batches(scaling)))
    verdicts = list(judge_all(predictions, needs))
    headlines = [(row.source, row.figure) for row in verdicts]
    assert len(set(headlines)) == len(headlines)
    ours = {row.figure: (row.low, row.middle, row.high) for row in predictions}
    for row, result in zip(verdicts[:4], ["hypertune", "hypertune", "stannis", "stannis"], strict=True):
        assert row.source == PUBLISHED[result].source
        assert row.published == getattr(PUBLISHED[result], row.figure)
        assert (row.low, row.middle, row.high) == ours[row.figure]
        assert row.reason
    traffic = next(row for row in verdicts if row.figure == "traffic")
    assert (traffic.published, traffic.verdict) == (pytest.approx(0.32), NOT_REPRODUCED)
    assert [row.verdict for row in verdicts if row.low is None] == [UNDECIDABLE]
    beside = list(put_beside(verdicts))
    assert [(row.source, row.figure) for row in beside] == headlines[:-1]
    assert {row.basis for row in beside} == {"simulated"}
    assert {row.published_basis for row in beside} == {"published"}


def test_a_prediction_is_the_same_server_as_the_simulation(
    scaling: list[Scaling], predictions: list[Prediction]
) -> None:
    middle = next(row for row in scaling[len(DRIVE_COUNTS) :] if row.drives == DRIVES)
    found = {row.figure: row.middle for row in predictions}
    assert found["ratio"] == middle.ratio
    assert found["speedup"] == pytest.approx(middle.speedup)
    assert found["energy_factor"] == pytest.approx(middle.energy_factor)
    assert found["traffic"] == pytest.approx(middle.link_bytes_per_record / model_load(MODEL).record_bytes)
    assert found["host_rate"] == pytest.approx(found["ratio"] * found["drive_rate"])


def a_report(
    servers: list[Nodes],
    scaling: list[Scaling],
    disturbed: list[DisturbanceFigures],
    predictions: list[Prediction],
) -> HypertuneReport:
    batches = list(vary_batch(servers[1]))
    needs = list(traffic_needs(host_shares(scaling), drive_batches(scaling)))
    verdicts = list(judge_all(predictions, needs))
    return HypertuneReport(
        *(verdicts, predictions, needs, INPUTS.frozen, "0" * 64, "cycles", "server", "modelled"),
        *(list(put_beside(verdicts)), [], [describe_input(SERVER, AT)], scaling, batches, disturbed, [], [], [], 0.0),
    )


@pytest.mark.slow
def test_the_files_hold_what_the_report_says(
    servers: list[Nodes],
    scaling: list[Scaling],
    disturbed: list[DisturbanceFigures],
    predictions: list[Prediction],
    tmp_path: Path,
) -> None:
    report = a_report(servers, scaling, disturbed, predictions)
    written = write_hypertune(report, tmp_path / "new" / "folder")
    assert sorted(Path(name) for name in written.files) == sorted((tmp_path / "new" / "folder").iterdir())
    assert msgspec.convert(json.loads(Path(written.files[-1]).read_text()), HypertuneReport) == written
    tables = {
        Path(name).name: list(csv.DictReader(Path(name).read_text().splitlines()))
        for name in written.files
        if name.endswith(".csv")
    }
    assert [float(row["speedup"]) for row in tables["scaling.csv"]] == [row.speedup for row in scaling]
    assert [float(row["retuned"]) for row in tables["disturbance.csv"]] == [row.retuned for row in disturbed]
    assert [row["chosen"] for row in tables["batches.csv"]] == [row.chosen for row in report.batches]
    assert [row["verdict"] for row in tables["verdicts.csv"]] == [row.verdict for row in report.verdicts]
    for name in ("scaling.csv", "batches.csv", "disturbance.csv"):
        assert {row["basis"] for row in tables[name]} == {"simulated"}
    for name in written.files:
        if name.endswith(".svg"):
            text = "".join(ElementTree.parse(name).getroot().itertext())
            assert "simulated" in text
    again = write_hypertune(report, tmp_path / "again")
    for one, other in zip(written.files[:-1], again.files[:-1], strict=True):
        assert Path(one).read_bytes() == Path(other).read_bytes()


@pytest.mark.parametrize("work", [reproduce_hypertune, reproduce_placement])
def test_a_folder_that_takes_no_files_is_told_before_anything_is_worked_out(
    work: Callable[..., object], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentUnfit, match=r"cannot be written .*; name another folder with --output"):
        work(CalibrationStore(tmp_path / "none", tmp_path / "none"), tmp_path / "file", Silent())


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_said(
    servers: list[Nodes],
    scaling: list[Scaling],
    disturbed: list[DisturbanceFigures],
    predictions: list[Prediction],
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(EnvironmentUnfit, match=r"cannot be written .*; name another folder with --output"):
        write_hypertune(a_report(servers, scaling, disturbed, predictions), tmp_path / "file")
