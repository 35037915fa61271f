"""From a job and an array to a decision: layers, memory, seconds, what is printed; and what is refused."""

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import msgspec
import pytest
import torch

from csd_emu.config.array_file import ArrayConfig
from csd_emu.perfmodel.split.cut_costs import CutCosts
from csd_emu.perfmodel.split.split_problem import DeviceCost, HostPlace, SplitProblem
from csd_emu.profiles.calibration.table_store import SHIPPED, CalibrationStore
from csd_emu.profiles.profile import End
from firmware_agent.common.errors import CalibrationError, ConfigurationError, ModelError
from firmware_agent.common.models import build_model
from firmware_agent.common.send_queue import TransferSettings
from firmware_agent.common.shipped_code import ShippedCode
from host.app.prepare import prepare_run, read_placement
from host.cli.placement_report import list_layer_costs, plan_placement, print_plan
from host.cli.schemas import find_output
from host.config.job_file import JobConfig
from host.config.resolve import ResolvedRun
from host.core.datasets import load_dataset
from host.core.evaluation import Evaluator
from host.policies.split.choose_cut import decide, decide_for
from host.policies.split.cut_decision import CutDecision
from host.training.split.decide_cut import choose_placement, settle
from host.training.split.layer_exchange import LayerExchange, _inspect_in_earnest, inspect_layers
from host.training.split.make_problem import make_situation
from host.training.split.measure_layers import measure
from host.training.split.split_model import place_model
from host.training.split.split_request import PlacementRequest, of_run
from host.training.sync.run_transfers import make_overlap
from tests import ROOT
from tests.support.calibration import with_layers
from tests.support.outputs import checked

STORE = CalibrationStore(SHIPPED)
DIGITS = ShippedCode("digits_cnn")
EXAMPLE = ROOT / "examples" / "placement"
# Models that cannot be cut, for two reasons.
ODD = """
from torch import nn
from torch.nn import functional

class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(256, 10)

    def forward(self, images):
        values = self.first(images)
        return self.second((values if values.sum() > -1e9 else -values).flatten(1))

class Sharing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside, self.middle = nn.Linear(64, 10), nn.Linear(10, 64)

    def forward(self, images):
        return functional.linear(self.middle(self.inside(images.flatten(1))), self.inside.weight)
"""


def job(**changes: object) -> JobConfig:
    return JobConfig.model_validate(
        {"model": "digits_cnn", "data": {"source": "digits"}, "mode": "sync", "batch_size": 32} | changes
    )


def array(**changes: object) -> ArrayConfig:
    return ArrayConfig.model_validate(
        {
            "name": "placed",
            "engine": "native",
            "clock": "modelled",
            "link": {"bandwidth": "2 MB/s"},
            "devices": [{"profile": "newport", "count": 3}],
        }
        | changes
    )


def request(**changes: object) -> PlacementRequest:
    config = array()
    batches = {node.name: 32 for node in config.list_nodes()}
    return replace(PlacementRequest(config, job(), DIGITS, (1, 8, 8), batches, 72, 100_000, False), **changes)


def files(folder: Path, **changes: object) -> tuple[Path, Path]:
    paths = folder / "job.yaml", folder / "array.yaml"
    for path, config in zip(paths, (job(**changes), array()), strict=True):
        path.write_text(json.dumps(config.model_dump(mode="json", exclude_defaults=True)), encoding="utf-8")
    return paths


def parts(situation: SplitProblem) -> list[DeviceCost | HostPlace]:
    """The drives, and the host behind them."""
    return [*situation.drives, situation.host]


def test_layers_have_all_of_the_model_once() -> None:
    model = build_model(DIGITS)
    layers = inspect_layers(DIGITS, (1, 8, 8), LayerExchange())
    assert sum(layer.push_bytes for layer in layers) == 4 * sum(p.numel() for p in model.parameters())
    assert [layer.crossing_bytes for layer in layers] == [None, 4096, 2048, 256]
    assert layers[0].reason
    assert all(a.tail_bytes > b.tail_bytes for a, b in itertools.pairwise(layers[1:]))


@pytest.mark.slow
def test_double_precision_takes_twice_the_bytes_and_frozen_statistics_are_pulled_alone() -> None:
    spec = ShippedCode("mobilenet_v2", arguments={"num_classes": 10})
    plain, frozen, double = (
        inspect_layers(spec, (3, 32, 32), each)
        for each in (LayerExchange(), LayerExchange(buffers=False), LayerExchange(double=True))
    )
    for one, other, twice in zip(plain, frozen, double, strict=True):
        assert one.pull_bytes == other.pull_bytes
        assert twice.crossing_bytes == (None if one.crossing_bytes is None else 2 * one.crossing_bytes)
    counts = sum(layer.push_bytes for layer in plain) - sum(layer.push_bytes for layer in frozen)
    model = build_model(spec)
    assert counts == sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())


def test_a_model_that_does_not_take_the_images_is_refused() -> None:
    with pytest.raises(ModelError, match="does not take images"):
        inspect_layers(DIGITS, (3, 64, 64), LayerExchange())


def test_the_predicted_step_is_that_of_the_table() -> None:
    situation = make_situation(request(), STORE)
    assert [drive.batch_size for drive in situation.drives] == [32, 32, 32]
    assert situation.host.forward_seconds < sum(drive.forward_seconds for drive in situation.drives)
    decision = choose_placement(request(), "auto", STORE)
    assert decision.layer == "6"
    assert decision.gain == pytest.approx(1.78, rel=0.05)
    assert choose_placement(request(), "none", STORE).layer is None
    assert decide_for(situation, "8").layer == "8"


def test_unequal_batches_and_a_host_that_trains() -> None:
    config = array(host={"trains": True}, devices=[{"profile": "newport"}, {"profile": "generic-a53", "name": "slow"}])
    batches = dict(zip((node.name for node in config.list_nodes()), (64, 8, 100), strict=True))
    situation = make_situation(request(config=config, batches=batches), STORE)
    assert [drive.local for drive in situation.drives] == [False, False, True]
    assert situation.records == 172
    assert decide(situation).layer == "6"


def test_a_parked_drive_takes_no_part() -> None:
    batches = dict.fromkeys(("csd-00", "csd-01"), 32) | {"csd-02": 0}
    assert len(make_situation(request(batches=batches), STORE).drives) == 2


def test_alexnet_on_drives_of_a_gibibyte_trains_with_its_linear_layers_on_the_host() -> None:
    """As a whole it needs 1.1 GB, and such a drive has 0.8 for it: too large, but for the cut."""
    config = array(engine="qemu", clock="auto", memory="1 GiB", link={"bandwidth": "2 GB/s"})
    batches = {node.name: 4 for node in config.list_nodes()}
    large = request(
        config=config, spec=ShippedCode("alexnet"), shape=(3, 224, 224), batches=batches, record_bytes=150_536
    )
    decision, fastest = (choose_placement(large, policy, STORE) for policy in ("relieve_wire", "auto"))
    assert decision.layer == "16"
    assert decision.unmoved_seconds is None
    assert fastest.step_seconds < decision.step_seconds
    assert fastest.row.moved_compute > decision.row.moved_compute
    halved = job(sync={"max_host_share": 0.5})
    bounded = choose_placement(replace(large, job=halved), "auto", STORE)
    assert 0 < bounded.row.moved_compute <= 0.5
    assert "csd-00 needs 1.2 GB of memory" in decision.reason
    with pytest.raises(ConfigurationError, match=r"none: csd-00 needs 1\.2 GB"):
        choose_placement(large, "none", STORE)


@pytest.mark.slow
def test_the_example_moves_late_layers_and_its_large_model_fits_only_so() -> None:
    small, large = (
        plan_placement(EXAMPLE / job, EXAMPLE / "array.yaml", STORE).placement for job in ("job.yaml", "too-large.yaml")
    )
    assert small is not None
    assert small.layer == "6"
    assert small.unmoved_seconds is not None
    assert small.unmoved_seconds > 1.5 * small.step_seconds
    assert large is not None
    assert large.layer == "16"
    assert "nothing moved does not fit: csd-00 needs 1.2 GB of memory" in large.reason


def test_a_model_that_computes_with_values_is_looked_at_in_earnest() -> None:
    layers = inspect_layers(ShippedCode("odd.py:Branching", ODD), (1, 8, 8), LayerExchange())
    assert [layer.name for layer in layers] == ["first", "second"]
    assert "torch.fx cannot follow its forward pass" in layers[1].reason


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenet_v2", "alexnet"])
def test_layers_are_the_same_without_values(name: str) -> None:
    spec, shape = ShippedCode(name), (3, 64, 64)
    assert inspect_layers(spec, shape, LayerExchange()) == _inspect_in_earnest(spec, shape, LayerExchange())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("Branching", "'second': the model cannot be cut there: torch.fx cannot follow its forward pass"),
        ("Sharing", "'middle': the model cannot be cut there: the tensor inside.weight is used on both sides of it"),
    ],
)
def test_a_model_that_cannot_be_cut_stays_whole_and_says_why_if_asked(model: str, reason: str) -> None:
    odd = request(spec=ShippedCode(f"odd.py:{model}", ODD), wall=True)
    assert choose_placement(odd, "auto", STORE).layer is None
    layer = reason.split("'")[1]
    with pytest.raises(ConfigurationError, match=re.escape(reason.replace("'", ""))):
        decide_for(make_situation(odd, STORE), layer)
    with pytest.raises(ConfigurationError, match=f"cannot be cut before '{layer}'"):
        place_model(Evaluator(odd.spec, load_dataset("digits", 0), 0), layer, "float32")


def test_a_host_without_memory_takes_no_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is this machine's, whatever the profile says."""
    assert choose_placement(request(), "auto", STORE).layer == "6"
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=100_000))
    assert choose_placement(request(), "auto", STORE).layer is None
    with pytest.raises(ConfigurationError, match=r"6: the host needs .* of memory for 96 records and has 100\.0 kB"):
        decide_for(make_situation(request(), STORE), "6")


def test_without_a_table_it_says_how_to_make_one() -> None:
    with pytest.raises(CalibrationError, match="csd-emu calibrate"):
        choose_placement(request(spec=ShippedCode("digits_cnn", arguments={"num_classes": 7})), "auto", STORE)


PRIORITY = TransferSettings("priority", 16_384, 65_536)


def test_auto_moves_what_it_would_anywhere_where_slices_really_cross_while_drives_compute() -> None:
    composed, real = (choose_placement(request(sending=PRIORITY, really=real), "auto", STORE) for real in (False, True))
    assert composed.layer == real.layer == "6"
    assert composed.overlapped
    assert real.overlapped
    # Beside its bytes a slice takes longer there.
    assert real.step_seconds > composed.step_seconds


def test_auto_moves_layers_of_jobs_that_do_not_wait_for_late_drives() -> None:
    assert choose_placement(request(job=job(sync={"straggler_factor": 1.5})), "auto", STORE).layer == "6"


def test_layers_of_this_machine_are_measured_by_its_clock() -> None:
    ticks = itertools.count()
    forward, backward = measure(DIGITS, (1, 8, 8), 4, now=lambda: float(next(ticks)))
    assert len(forward) == len(backward) == 4
    assert sum(forward) > 0
    before = torch.get_rng_state()
    measure(DIGITS, (1, 8, 8), 1, "float64")
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.slow
def test_the_wall_has_its_own_layers() -> None:
    situation = make_situation(request(wall=True), STORE)
    assert all(drive.layer_shares is not None for drive in situation.drives)
    assert situation.drives[0].memory is None


# What each of the quickstart's layers was measured to take, of one record and of many.
NAMES = ["0", "2", "6", "8"]
WEIGHTS = {1: [(3, 3), (3, 3), (3, 3), (1, 1)], 256: [(10, 10), (70, 80), (15, 7), (5, 3)]}


@pytest.fixture
def measured(tmp_path: Path) -> CalibrationStore:
    """The tables, and that of the quickstart's CNN with layers."""
    store = CalibrationStore(tmp_path / "tables")
    store.save(with_layers(STORE.require(DIGITS, (1, 8, 8)), NAMES, WEIGHTS))
    return store


@pytest.fixture
def unmeasured(tmp_path: Path) -> CalibrationStore:
    """That table without layers, as it is of a model that was calibrated without them."""
    store = CalibrationStore(tmp_path / "unmeasured")
    store.save(with_layers(STORE.require(DIGITS, (1, 8, 8)), [], {}))
    return store


def test_measured_layers_go_before_arithmetic_and_the_step_stays_what_it_is(
    measured: CalibrationStore, unmeasured: CalibrationStore
) -> None:
    plain, own = (make_situation(request(), store) for store in (unmeasured, measured))
    for one, other in zip(parts(plain), parts(own), strict=True):
        assert (other.forward_seconds, other.backward_seconds) == (one.forward_seconds, one.backward_seconds)
        assert one.layer_shares is None
        assert "csd-emu calibrate" in one.layer_reason
        assert (other.layer_clock, other.layer_reason) == ("counted", "")
    layers = measured.require(DIGITS, (1, 8, 8)).layer_seconds(32)
    assert layers is not None
    drive, host = CutCosts(own).pass_seconds(own.drives[0]), CutCosts(own).pass_seconds(own.host)
    assert drive[0].sum() == pytest.approx(own.drives[0].forward_seconds)
    assert drive[1].sum() == pytest.approx(own.drives[0].backward_seconds)
    whole = sum(layer.forward_seconds for layer in layers)
    shares = [layer.forward_seconds / whole for layer in layers]
    assert drive[0] / drive[0].sum() == pytest.approx(shares)
    # The host's records are those of three drives, and more records have other shares.
    assert host[0] / host[0].sum() != pytest.approx(shares, rel=0.01)
    # What is moved takes longer than arithmetic says, so the drive is spared more of its seconds.
    cut = [CutCosts(each).forward_seconds[0][2] for each in (plain, own)]
    assert cut[1] < cut[0]


def test_layers_of_other_names_are_not_used_and_it_says_so(tmp_path: Path, unmeasured: CalibrationStore) -> None:
    store = CalibrationStore(tmp_path)
    store.save(with_layers(STORE.require(DIGITS, (1, 8, 8)), ["0", "2", "6", "other"], WEIGHTS))
    situation = make_situation(request(), store)
    assert all(drive.layer_shares is None for drive in situation.drives)
    assert "are not those that this machine's torch finds" in situation.drives[0].layer_reason
    other, plain = (choose_placement(request(), "auto", each) for each in (store, unmeasured))
    assert other.rows == plain.rows
    assert any("by arithmetic (FLOPs)" in note and "this machine's torch finds" in note for note in other.notes)


@pytest.mark.slow
def test_a_plan_says_what_each_layer_takes_and_how_that_is_known(
    tmp_path: Path, measured: CalibrationStore, unmeasured: CalibrationStore, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = files(tmp_path)
    for store, clock, words in (
        (unmeasured, None, "on csd-00 and 2 alike: shared out by arithmetic (the calibration table has no layers"),
        (measured, "counted", "modelled, in proportion to what each was measured to take on a drive (counted)"),
    ):
        report = plan_placement(*paths, store)
        plan = report.placement
        assert plan is not None
        assert [(each.device, each.alike, each.records) for each in plan.layer_costs] == [
            ("csd-00", 3, 32),
            ("host", 1, 96),
        ]
        for costs in plan.layer_costs:
            assert (costs.clock, costs.measured_clock) == ("modelled", clock)
            assert bool(costs.reason) is (clock is None)
            assert [row.name for row in costs.layers] == NAMES
        situation = make_situation(request(), store)
        for part, costs in zip(parts(situation)[:1] + parts(situation)[-1:], plan.layer_costs, strict=True):
            assert sum(row.forward_seconds for row in costs.layers) == pytest.approx(part.forward_seconds)
            assert sum(row.backward_seconds for row in costs.layers) == pytest.approx(part.backward_seconds)
        print_plan(report)
        assert words in capsys.readouterr().out.replace("\n", " ")
        checked("plan", msgspec.json.encode(report).decode())


def test_the_wall_measures_its_layers_here() -> None:
    situation = make_situation(request(wall=True), STORE)
    for costs in list_layer_costs(situation, "wall"):
        assert (costs.clock, costs.measured_clock, costs.reason) == ("wall", "wall", "")
    for part in parts(situation):
        assert part.layer_shares is not None
        assert sum(part.layer_shares[0]) == pytest.approx(part.forward_seconds)
        assert sum(part.layer_shares[1]) == pytest.approx(part.backward_seconds)


def test_a_run_is_accounted_with_the_shares_that_it_was_decided_with(
    measured: CalibrationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("host.app.prepare.CalibrationStore", lambda _: measured)
    run = prepare_run(ResolvedRun(array(), job(placement="6"), DIGITS))
    assert run.placed is not None
    layers = measured.require(DIGITS, (1, 8, 8)).layer_seconds(32)
    assert layers is not None
    kept = sum(layer.forward_seconds for layer in layers[:2]) / sum(layer.forward_seconds for layer in layers)
    assert run.placed.front.forward_share == pytest.approx(kept)
    plain = place_model(run.evaluator, "6", "float32").front
    assert run.placed.front.forward_share < plain.forward_share
    assert run.placed.front.encode_share == plain.encode_share
    # And the schedule that composes its steps knows them too.
    composed = make_overlap(run.evaluator, run.evaluator.initial_weights(), "device", None, False, shares=run.shares)
    operations = [layer.forward_operations for layer in composed.layers]
    assert sum(operations[:2]) / sum(operations) == pytest.approx(kept)


def test_a_plan_is_printed_and_has_a_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_placement(*files(tmp_path), STORE)
    assert plan.placement is not None
    assert plan.placement.layer == "6"
    assert [cut.layer for cut in plan.placement.cuts] == [None, "8", "6", "2"]
    print_plan(plan)
    shown = capsys.readouterr().out
    assert "<- chosen" in shown
    assert "(nothing moved)" in shown
    assert "activations and labels" in shown
    assert msgspec.json.schema(find_output("plan"))


SECONDS = "step_seconds", "at_least_seconds", "drive_seconds", "host_seconds"


def test_all_seconds_of_cuts_have_a_band_that_holds_them_and_the_choice_is_made_again_at_its_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = plan_placement(*files(tmp_path), STORE)
    plan = report.placement
    assert plan is not None
    assert plan.at_ends == {"low": "6", "high": "6"}
    for cut in plan.cuts:
        seconds = {name: getattr(cut, name) for name in SECONDS}
        assert cut.bands.keys() == {name for name, value in seconds.items() if value is not None}
        assert all(band.low <= seconds[name] <= band.high for name, band in cut.bands.items())
        assert cut.bands["drive_seconds"].high > 2 * cut.bands["drive_seconds"].low
    for end in get_args(End):
        there = choose_placement(request(end=end), "auto", STORE)
        for cut, row in zip(plan.cuts, there.rows, strict=True):
            if row.step_seconds is not None and cut.step_seconds is not None:
                assert getattr(cut.bands["step_seconds"], end) == pytest.approx(row.step_seconds)
    print_plan(report)
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(
        r"times as fast as with nothing moved \([0-9.]+ to [0-9.]+ times; [0-9]+% of their bands cancels\)", shown
    )
    assert "the same at both ends of the bands" in shown


def test_a_plan_without_bands_shows_the_figures_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = plan_placement(*files(tmp_path), STORE)
    assert report.placement is not None
    cuts = [replace(cut, bands={}) for cut in report.placement.cuts]
    print_plan(
        msgspec.structs.replace(report, placement=msgspec.structs.replace(report.placement, cuts=cuts, at_ends={}))
    )
    out = capsys.readouterr().out
    assert "bands" not in out
    assert not re.search(r"\([0-9]", out)


def test_the_table_of_cuts_fits_a_usual_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(plan_placement(*files(tmp_path), STORE))
    table = capsys.readouterr().out.split("clock of all")[0].splitlines()
    assert max(map(len, table)) <= 110
    assert any(line.split()[:1] == ["to"] for line in table)


@pytest.mark.slow
def test_the_tuner_chooses_the_first_batches(tmp_path: Path) -> None:
    read = read_placement(*files(tmp_path, tuner="stannis"), STORE)
    plan = prepare_run(ResolvedRun(read.config, read.job, DIGITS)).sync
    assert plan is not None
    assert tuple(read.batches.values()) == plan.batches
    assert len(set(plan.batches)) == 1
    assert plan.batches[0] != read.job.batch_size


UNEQUAL = [{"profile": "newport", "count": 2}, {"profile": "generic-a53", "name": "slow"}]


@pytest.mark.slow
@pytest.mark.parametrize("tuner", ["stannis", "hypertune"])
def test_a_cut_is_decided_with_the_batches_that_a_run_with_it_begins_with(tuner: str) -> None:
    config = array(devices=UNEQUAL, host={"trains": True})
    asked = job(tuner=tuner, placement="auto", sync={"tuning": {"slow_batch": 8}})
    run = prepare_run(ResolvedRun(config, asked, DIGITS))
    assert run.sync is not None
    assert run.placed is not None
    choice = settle(of_run(run, run.communication, STORE), STORE)
    assert choice.decision.layer == run.placed.layer
    assert tuple(choice.request.batches.values()) == run.sync.batches
    assert tuple(drive.batch_size for drive in choice.situation.drives) == run.sync.batches
    whole = of_run(run, run.communication, STORE)
    assert tuple(whole.batches.values()) != run.sync.batches
    assert whole.batches_for is not None
    assert tuple(whole.batches_for(run.placed.layer).values()) == run.sync.batches
    unmoved = prepare_run(ResolvedRun(config, asked.model_copy(update={"placement": "none"}), DIGITS)).sync
    assert unmoved is not None
    assert tuple(whole.batches.values()) == unmoved.batches


def planned(others: int, **layers: int) -> PlacementRequest:
    """Where a run with a cut begins with so many records per drive, and with 32 with nothing moved."""
    asked = request()
    return replace(asked, batches_for=lambda layer: dict.fromkeys(asked.batches, layers.get(f"before_{layer}", others)))


def test_a_cut_that_its_own_batches_do_not_suit_is_held_against_what_they_do() -> None:
    """Steps of one record a drive are short, and there are many of them."""
    assert choose_placement(request(), "auto", STORE).layer == "6"
    good = settle(planned(1, before_6=33), STORE)
    assert (good.decision.layer, good.situation.records) == ("6", 99)
    slow = settle(planned(1), STORE)
    assert (slow.decision.layer, slow.situation.records) == (None, 96)
    assert "records a second" in slow.decision.reason
    assert slow.decision.step_seconds == pytest.approx(choose_placement(request(), "none", STORE).step_seconds)


def test_with_the_batches_that_the_whole_model_has_it_is_decided_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decided: list[int] = []

    def counted(situation: SplitProblem) -> CutDecision:
        decided.append(situation.records)
        return decide(situation)

    policy = SimpleNamespace(load=lambda _: lambda: SimpleNamespace(decide=counted))
    monkeypatch.setattr(f"{settle.__module__}.SPLIT_POLICY", policy)
    settle(planned(32), STORE)
    assert sorted(decided) == [24, 96, 384]


def test_a_cut_that_is_not_chosen_with_its_own_batches_is_left_for_what_is() -> None:
    """With 4096 records a drive, activations of any cut are more than all parameters."""
    choice = settle(planned(1, before_6=4096), STORE)
    rivals = {}
    for layer, batch in ((None, 32), ("2", 1), ("6", 4096)):
        situation = make_situation(request(batches=dict.fromkeys(choice.request.batches, batch)), STORE)
        rivals[layer] = situation.records / decide_for(situation, layer).step_seconds
    best = max(rivals, key=rivals.__getitem__)
    assert choice.decision.layer == best
    assert choice.records_per_second == pytest.approx(rivals[best])


def test_a_federated_job_has_no_placement(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="mode: sync"):
        read_placement(*files(tmp_path, mode="federated"), STORE)
