from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.config.array_file import ArrayConfig
from csd_emu.profiles import get_profile
from csd_emu.profiles.calibration import CalibrationKey, CalibrationStore
from csd_emu.profiles.calibration.table_key import core_name
from csd_emu.profiles.profile import End, Sourced
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.shipped_code import ShippedCode
from host.core.device_time import CycleModel, DeviceTime, TableModel, batch_counts, find_cycles, pass_seconds
from tests.support.calibration import make_table, with_cycles

MEASURED = PhaseSeconds(forward=1.0, backward=2.0, update=0.5, encode=0.25)
NEWPORT = get_profile("newport")


class Line:
    """A table whose steps take 1 ms and 1 ms per record, half of it forward and half backward."""

    encode_seconds = 0.125

    def step_seconds(self, batch_size: int) -> PhaseSeconds:
        half = (1 + batch_size) * 0.5e-3
        return PhaseSeconds(forward=half, backward=half)

    def covers(self, batch_size: int) -> bool:
        return True

    def at(self, _: End) -> "Line":
        return self


def device_time(model: Line | None = None) -> DeviceTime:
    return DeviceTime({"csd-00": NEWPORT}, {} if model is None else {"csd-00": model})


def test_counted_seconds_are_scaled_and_wall_seconds_are_not() -> None:
    time = device_time()
    assert time.seconds("csd-00", "counted", MEASURED, {8: 1}) == NEWPORT.device_seconds(MEASURED)
    assert time.seconds("csd-00", "wall", MEASURED, {8: 1}) == MEASURED
    assert [time.clock("csd-00", clock) for clock in ("counted", "wall")] == ["counted", "wall"]


@given(st.dictionaries(st.integers(1, 512), st.integers(1, 1000), min_size=1, max_size=4))
def test_modelled_seconds_are_the_sum_over_the_steps_whatever_was_measured(batches: dict[int, int]) -> None:
    time = device_time(Line())
    assert [time.clock("csd-00", clock) for clock in ("counted", "wall")] == ["counted", "modelled"]
    steps = sum(count * (1 + size) * 1e-3 for size, count in batches.items())
    for measured in (MEASURED, PhaseSeconds()):
        seconds = time.seconds("csd-00", "wall", measured, batches)
        assert seconds.total == pytest.approx(steps + 0.125)
    # A counted device needs no model.
    assert time.seconds("csd-00", "counted", MEASURED, batches) == NEWPORT.device_seconds(MEASURED)


@given(st.dictionaries(st.sampled_from([4, 16]), st.integers(1, 50), min_size=1), st.floats(0.5, 9))
def test_counted_seconds_in_cycles_are_those_that_the_table_models(batches: dict[int, int], ratio: float) -> None:
    plain = with_cycles(
        make_table({4: 0.01, 16: 0.03}), {"forward": ratio, "backward": 2 * ratio, "update": 1.5, "encode": 1.25}
    )
    slow = replace(NEWPORT, instructions_per_cycle=Sourced(0.5, "assumed: for a test"))
    counted = pass_seconds(TableModel(plain, get_profile("generic-a53")), batches)
    one = CycleModel(plain, plain.in_cycles(), slow)
    time = DeviceTime({"csd-00": slow}, {}, {"csd-00": one})
    seconds = time.seconds("csd-00", "counted", counted, batches)
    modelled = pass_seconds(TableModel(plain.in_cycles(), slow), batches)
    for phase in PhaseSeconds.__struct_fields__:
        assert getattr(seconds, phase) == pytest.approx(getattr(modelled, phase), rel=1e-6)
    # Cycles are what they are, however many instructions a cycle was assumed to take.
    assert modelled == pass_seconds(TableModel(plain.in_cycles(), NEWPORT), batches)


def test_cycles_of_a_model_that_was_never_calibrated_are_assumed_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group = {"profile": "newport", "count": 2}
    config = ArrayConfig.model_validate({"name": "lab", "core_model": "cycles", "devices": [group]})
    store = CalibrationStore(tmp_path, tmp_path).counting("cycles")
    found = find_cycles(config, ShippedCode("digits_cnn"), (1, 8, 8), store)
    assert "'digits_cnn' was never calibrated: forward 1.9" in caplog.text
    seconds = DeviceTime(dict.fromkeys(found, NEWPORT), {}, found).seconds("csd-00", "counted", MEASURED, {8: 1})
    assert seconds.update == pytest.approx(3.0 * NEWPORT.cycle_scale("update", 0.0) * MEASURED.update)
    plain = config.model_copy(update={"core_model": "instructions"})
    assert find_cycles(plain, ShippedCode("digits_cnn"), (1, 8, 8), store) == {}


def test_a_device_grows_only_while_there_is_traffic() -> None:
    fast = replace(NEWPORT, dram_bytes_per_second=Sourced(1e9, "assumed: for a test"))
    plain = with_cycles(make_table({4: 0.01}), dict.fromkeys(("forward", "backward", "update", "encode"), 2.0))
    time = DeviceTime({"csd-00": fast}, {"csd-00": TableModel(plain, fast)}, {})
    for traffic in (1e8, 0.0):
        time.set_traffic({"csd-00": traffic})
        time.seconds("csd-00", "wall", MEASURED, {4: 1})
        assert set(time.growths) == ({"csd-00"} if traffic else set())


def test_virtual_machines_have_the_cycles_of_their_own_cores(tmp_path: Path) -> None:
    groups = [{"profile": "newport", "name": "ours"}, {"profile": "raspberry-pi-3-b-plus", "name": "board"}]
    config = ArrayConfig.model_validate({"name": "lab", "core_model": "cycles", "devices": groups})
    store, profile = CalibrationStore(tmp_path, tmp_path), get_profile("raspberry-pi-3-b-plus")
    ratios = dict.fromkeys(("forward", "backward", "update", "encode"), 2.0)
    key = CalibrationKey.of(ShippedCode("digits_cnn"), (1, 8, 8), core_name(profile.core_parameters))
    store.save(with_cycles(make_table({4: 0.01, 16: 0.03}), ratios))
    # Of other batches: the instructions below are those of the same table.
    longer = dict.fromkeys(ratios, 3.0)
    store.save(with_cycles(make_table({1: 0.05, 2: 0.09}, key), longer, profile.core_parameters.digest))
    found = find_cycles(config, ShippedCode("digits_cnn"), (1, 8, 8), store.counting("cycles"))
    for device, name, ratio in (("ours-00", "newport", 2.0), ("board-00", profile.name, 3.0)):
        own = get_profile(name)
        seconds = DeviceTime({device: own}, {}, found).seconds(device, "counted", MEASURED, {8: 3})
        assert seconds.encode == pytest.approx(ratio * own.cycle_scale("encode", 0.0) * MEASURED.encode, rel=1e-6)


@given(st.integers(1, 10_000))
def test_a_competitor_takes_its_share_of_a_modelled_device_until_it_ends(weight: int) -> None:
    time = device_time(Line())
    before = time.seconds("csd-00", "wall", MEASURED, {4: 3})
    time.set_competitor("csd-00", weight)
    slowed = time.seconds("csd-00", "wall", MEASURED, {4: 3})
    assert slowed.total == pytest.approx(before.total * (100 + weight) / 100)
    time.set_competitor("csd-00", 0)
    assert time.seconds("csd-00", "wall", MEASURED, {4: 3}) == before


@given(st.integers(1, 3000), st.integers(1, 7), st.integers(1, 300))
def test_batch_counts_are_what_a_trainer_does(shard: int, epochs: int, batch_size: int) -> None:
    counts: dict[int, int] = {}
    for _ in range(epochs):
        for start in range(0, shard, batch_size):
            size = min(batch_size, shard - start)
            counts[size] = counts.get(size, 0) + 1
    assert batch_counts(shard * epochs, epochs, batch_size) == counts


def test_a_round_without_training_has_no_batches() -> None:
    assert batch_counts(0, 0, 32) == {}
