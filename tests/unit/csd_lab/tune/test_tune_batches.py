import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.profiles import Profile
from csd_emu.profiles.calibration import CalibrationStore, CalibrationTable
from csd_emu.profiles.calibration.calibration_table import CalibrationRow
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from csd_lab.cli.tune import print_tune
from csd_lab.tune.tune_batches import TuneRequest, calibrate_missing, missing_request, plan_epoch, read_tune, tune
from csd_lab.tune.tune_report import TunedDevice, TuneReport
from firmware_agent.common.errors import CalibrationError, ConfigurationError
from host.app import calibration_measurement as calibration
from host.cli.schemas import find_output
from host.config.calibration_request import CalibrationRequest
from host.core.console import console
from host.policies.batching.device_speeds import device_classes
from host.policies.batching.stannis import Overflow
from host.training.sampler import EpochQueue
from host.training.sync_plan import Records
from tests.support.calibration import DIGITS, make_table
from tests.support.examples import examples

ARRAY = {
    "name": "lab",
    "host": {"trains": True},
    "devices": [{"profile": "newport", "count": 2}, {"profile": "generic-a53"}],
}
JOB = {"model": "digits_cnn", "data": {"source": "digits", "private": 0.1}, "mode": "sync", "tuner": "stannis"}
COSTS = {2: 0.006, 8: 0.012, 16: 0.02, 32: 0.036}


def request(folder: Path, array: dict[str, Any] | None = None, **job: Any) -> TuneRequest:
    (folder / "array.yaml").write_text(yaml.safe_dump(ARRAY | (array or {})))
    (folder / "job.yaml").write_text(yaml.safe_dump(JOB | job))
    return read_tune(folder / "job.yaml", folder / "array.yaml")


def report(folder: Path, table: CalibrationTable | None = None, **job: Any) -> TuneReport:
    store = CalibrationStore(folder / "tables", folder / "none")
    store.save(table or make_table(COSTS))
    return tune(request(folder, **job), store, "middle")


def parts_of(told: TuneReport) -> list[TuneReport | TunedDevice]:
    return [told, *told.devices]


def shown(told: TuneReport, width: int = 160) -> str:
    with console.capture() as capture:
        before, console.width = console.width, width
        try:
            print_tune(told)
        finally:
            console.width = before
    return capture.get()


def test_all_finish_together_and_equal_batches_are_compared(tmp_path: Path) -> None:
    told = report(tmp_path, sync={"tuning": {"slow_batch": 8}})
    assert [device.device for device in told.devices] == ["csd-00", "csd-01", "csd-02", "host"]
    assert told.devices[2].batch_size == 8
    seconds = [device.compute_seconds for device in told.devices]
    assert told.step_seconds == pytest.approx(max(seconds) + told.exchange_seconds)
    assert told.exchange_seconds > 0
    assert told.imbalance == pytest.approx(1 - min(seconds) / max(seconds))
    assert told.records_per_second == pytest.approx(sum(d.batch_size for d in told.devices) / told.step_seconds)
    assert told.records_per_second > 2 * told.equal_records_per_second
    assert sum(d.equal_batch_size for d in told.devices) == sum(d.batch_size for d in told.devices)
    assert told.host_ratio == pytest.approx(15.2)
    jsonschema.validate(json.loads(json.dumps(_plain(told))), msgspec.json.schema(find_output("tune")))
    text = shown(told)
    assert "csd-00 to csd-01 (newport)" in text
    assert "counted, reference core, over 15.2" in text


@pytest.mark.parametrize("core_model", ["instructions", "cycles"])
def test_bands_hold_their_figures_and_what_is_said_of_batches_at_their_ends_is_true(
    tmp_path: Path, core_model: str
) -> None:
    store = CalibrationStore(Path("/nonexistent"))
    asked = request(tmp_path, {"core_model": core_model}, sync={"tuning": {"slow_batch": 4}})
    told = tune(asked, store, "middle")
    for one in parts_of(told):
        assert len(one.bands) == (4 if one is told else 3)
        for name, band in one.bands.items():
            assert band.low <= getattr(one, name) <= band.high, name
            assert band.low < band.high or core_model == "instructions", name  # of which a generic-a53's are exact
    longest = max(device.bands["compute_seconds"].high for device in told.devices)
    assert told.bands["step_seconds"].high == pytest.approx(longest + told.bands["exchange_seconds"].high)
    # At each end the batches are those of an array whose devices are as fast as these there: all finish together.
    for end in ("low", "high"):
        tables = store.counting(core_model).of(asked.spec, asked.shape)
        known = device_classes(asked.config, tables, asked.job.sync, shard_bytes=asked.shard_bytes, end=end)
        seconds = [known[each.device].speed.seconds(each.batch_at_ends[end]) for each in told.devices]
        assert 1 - min(seconds) / max(seconds) < 0.15
    text = shown(told, 300)
    assert f"s (modelled{', cycles' if core_model == 'cycles' else ''}), of them" in text
    same = all(set(each.batch_at_ends.values()) == {each.batch_size} for each in told.devices)
    assert ("STANNIS would choose the same at both ends of the bands" in text) == same


@settings(max_examples=examples(60))
@given(
    sizes=st.lists(st.tuples(st.integers(1, 40), st.booleans(), st.integers(1, 9)), min_size=2, max_size=4),
    public=st.integers(1, 90),
    overflow=st.sampled_from(["repeat", "subsample"]),
)
def test_an_epoch_is_what_a_run_deals_with_records_in_place(
    sizes: list[tuple[int, bool, int]], public: int, overflow: Overflow
) -> None:
    """All but the last step of a run are full, and it rounds up in each: a step more or less for each node."""
    private, own, batches = (list(each) for each in zip(*[*sizes, (0, False, 5)], strict=True))
    nodes = [f"csd-{number:02}" for number in range(len(own))]
    in_place = {node: "" for node, here in zip(nodes, own, strict=True) if here}
    found = plan_epoch(Records(tuple(private), public, 1, in_place), nodes, batches, overflow)
    places = [number for number, here in enumerate(own) if here]
    queue = EpochQueue(private, public, 0, overflow, in_place=places)
    assert found.steps == queue.steps_left(batches)
    dealt = [queue.next_step(batches).records for _ in range(found.steps)]
    for number, size in enumerate(private):
        every = np.concatenate([records[number] for records in dealt])
        assert abs(int((every >= size).sum()) - int(found.public[number])) <= 2 * batches[number]
        assert abs(len(np.unique(every[every < size])) - int(found.private_seen[number])) <= 2 * batches[number]
        assert not (own[number] and found.public[number])


def test_without_bands_figures_are_points_and_stand_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Profile, "at", lambda self, _: self)
    told = report(tmp_path)
    for one in parts_of(told):
        assert all(band.low == band.high == getattr(one, name) for name, band in one.bands.items())
    text = shown(told, 300)
    assert "STANNIS would choose the same at both ends of the bands" in text
    assert not re.search(r"\d \([\d.]+ to ", text)


def test_a_narrow_terminal_is_shown_all_figures(tmp_path: Path) -> None:
    told = report(tmp_path)
    narrow = shown(told, 60)
    assert "…" not in narrow
    rows = [line for line in shown(told).splitlines() if "newport)" in line or "xeon-4108)" in line]
    assert len(rows) == 2
    for row in rows:
        assert row.split() in [line.split() for line in narrow.splitlines()]


@pytest.mark.slow
def test_what_was_done_about_records_without_room_is_said(tmp_path: Path) -> None:
    sync = {"tuning": {"slow_batch": 2}}
    repeat = report(tmp_path, data=JOB["data"] | {"private": 0.5}, sync=sync)  # type: ignore[operator]
    assert repeat.repeated_records > 0
    assert f"public records are seen again in it, {repeat.repeated_records} in all" in repeat.notes[0]
    subsample = report(tmp_path, data=JOB["data"] | {"private": 0.5}, sync=sync | {"overflow": "subsample"})  # type: ignore[operator]
    assert subsample.repeated_records == 0
    left = sum(device.left_out_records for device in subsample.devices)
    assert f"leaves {left} private records out" in subsample.notes[0]
    assert subsample.notes[0] in shown(subsample)
    assert subsample.steps_per_epoch < repeat.steps_per_epoch


def test_batches_larger_than_memory_are_shown_in_parts(tmp_path: Path) -> None:
    rows = tuple(
        CalibrationRow(row.of, row.batch_size, row.steps, (500 + 200 * row.batch_size) << 20, 1.0)
        for row in make_table(COSTS).rows
    )
    told = report(tmp_path, make_table(COSTS, rows=rows), sync={"tuning": {"slow_batch": 16}})
    slow = told.devices[2]
    # 500 MiB + 200 MiB per record in 2 GiB less 256 MiB, and less a shard of a hundred kilobytes.
    assert slow.micro_batch == 6
    assert slow.needed_bytes <= slow.available_bytes
    assert "16 in 3" in shown(told)


@pytest.mark.slow
def test_a_jump_in_the_table_gives_a_hint(tmp_path: Path) -> None:
    told = report(tmp_path, make_table({2: 0.02, 8: 0.08, 15: 0.15, 16: 0.24, 32: 0.48}))
    assert any("sync.micro_batch: 15" in note for note in told.notes)
    assert not any("micro_batch" in note for note in report(tmp_path).notes)


def test_steps_larger_than_the_data_set_are_noted(tmp_path: Path) -> None:
    told = report(tmp_path, make_table({2: 0.02, 256: 0.1}))
    assert any("the data set has 1437" in note and "slow_batch" in note for note in told.notes)


def test_only_synchronous_jobs_are_tuned_and_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="write mode: sync"):
        request(tmp_path, mode="federated", tuner="none", data={"source": "digits"})
    with pytest.raises(CalibrationError, match="csd-emu calibrate digits_cnn --input 1x8x8"):
        tune(request(tmp_path), CalibrationStore(tmp_path / "x", tmp_path / "y"), "middle")


def test_a_missing_table_is_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[CalibrationRequest] = []

    def measure(wanted: CalibrationRequest, *_: object) -> CalibrationTable:
        asked.append(wanted)
        return make_table(COSTS, wanted.key)

    monkeypatch.setattr(calibration, "calibrate", measure)
    paths = Paths(tmp_path / "cache", tmp_path / "state", tmp_path / "run")
    needed = request(tmp_path, model_arguments={"num_classes": 12})
    for _ in range(2):
        calibrate_missing(needed, paths, Silent())
    assert [wanted.batches for wanted in asked] == [(2, 4, 8, 15, 16, 32)]
    assert asked[0].machine_bytes == 2 << 30
    assert CalibrationStore(paths.calibration).find(needed.spec, needed.shape) is not None
    assert asked[0].key != DIGITS


@pytest.mark.slow
def test_a_model_that_no_drive_can_measure_is_refused(tmp_path: Path) -> None:
    data = {"source": "synthetic:3x224x224:1000"}
    large = request(tmp_path, {"memory": "1 GiB", "host": {}}, model="vgg16", data=data)
    with pytest.raises(CalibrationError, match="raise memory in the array file"):
        missing_request(large)


def _plain(told: TuneReport) -> Any:
    import msgspec

    return msgspec.to_builtins(told)


def test_records_in_place_are_assumed_to_be_as_many_as_the_data_set_has(tmp_path: Path) -> None:
    own = {"profile": "newport", "data": "/own"}
    array = {"host": {"trains": False}, "devices": [own, own | {"profile": "generic-a53"}]}
    asked = request(tmp_path, array)
    assert asked.records.private_sizes == (len(asked.dataset),) * 2
    assert (asked.records.public_size, set(asked.records.in_place)) == (0, {"csd-00", "csd-01"})
    store = CalibrationStore(tmp_path / "tables", tmp_path / "none")
    store.save(make_table(COSTS))
    told = tune(asked, store, "middle")
    assert any("csd-01: how many records lie there in place is known in a run alone" in note for note in told.notes)
