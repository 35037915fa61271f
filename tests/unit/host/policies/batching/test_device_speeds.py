import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from csd_emu.config.array_file import ArrayConfig
from csd_emu.profiles import get_profile
from csd_emu.profiles.calibration import CalibrationKey, CalibrationStore, CalibrationTable
from csd_emu.profiles.profile import RatioName
from csd_lab.simulate.host_worth import host_worth
from firmware_agent.common.errors import CalibrationError, ConfigurationError
from firmware_agent.common.shipped_code import ShippedCode
from host.config.sync_section import SyncSection
from host.core.device_time import table_models
from host.policies.batching.device_speeds import (
    LARGEST_BATCH,
    DeviceClass,
    accumulated,
    device_classes,
    speed_tables,
)
from host.policies.batching.memory_limit import RESERVE_BYTES
from tests.support.calibration import make_table, tables
from tests.support.examples import examples

DIGITS, SHAPE = ShippedCode("digits_cnn"), (1, 8, 8)
COSTS = {1: 0.1, 2: 0.15, 4: 0.25, 8: 0.45}


def array(*profiles: str, memory: str = "2 GiB", trains: bool = False, engine: str = "qemu") -> ArrayConfig:
    return ArrayConfig.model_validate(
        {
            "name": "t",
            "engine": engine,
            "memory": memory,
            "host": {"trains": trains},
            "devices": [{"profile": profile} for profile in profiles],
        }
    )


def store(folder: Path, table: CalibrationTable | None = None) -> CalibrationStore:
    kept = CalibrationStore(folder, folder / "shipped")
    kept.save(table or make_table(COSTS))
    return kept


def classes(
    config: ArrayConfig, folder: Path, sync: SyncSection | None = None, table: CalibrationTable | None = None
) -> dict[str, DeviceClass]:
    return device_classes(config, store(folder, table).of(DIGITS, SHAPE), sync or SyncSection())


def test_seconds_are_the_scaled_table_without_the_update_and_with_one_encoding(tmp_path: Path) -> None:
    table = make_table(COSTS)
    found = speed_tables(classes(array("newport", "generic-a53"), tmp_path))
    for device, name in (("csd-00", "newport"), ("csd-01", "generic-a53")):
        profile = get_profile(name)
        for batch in (1, 2, 3, 4, 7, 8, 100, 5000):
            step = table.device_seconds(batch, profile)
            expected = step.forward + step.backward + table.encode_seconds_median * profile.scale("encode")
            assert found[device].seconds(batch) == pytest.approx(expected, rel=1e-9), (name, batch)


@pytest.mark.slow
def test_the_host_is_as_many_newports_as_its_profile_says(tmp_path: Path) -> None:
    config = array("newport", "solana", trains=True)
    ratios = get_profile("xeon-4108").ratio
    assert ratios is not None
    for ratio in ("low", "middle", "high"):
        found = device_classes(config, store(tmp_path).of(DIGITS, SHAPE), SyncSection(), ratio)  # type: ignore[arg-type]
        assert list(found) == ["csd-00", "csd-01", "host"]
        quotient = found["csd-00"].speed.step_seconds / found["host"].speed.step_seconds
        assert quotient == pytest.approx(getattr(ratios, ratio).value)
    assert found["host"].memory.device_bytes == get_profile("xeon-4108").dram_bytes.value


@given(tables(), st.sampled_from(["low", "middle", "high"]), st.integers(1, 3000))
@settings(max_examples=examples(10))
def test_a_host_that_was_measured_is_as_fast_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, measured: CalibrationTable, ratio: RatioName, batch: int
) -> None:
    config, kept = array("newport", trains=True), store(tmp_path_factory.mktemp("store"))
    host = get_profile(config.host.profile)
    before = kept.of(DIGITS, SHAPE)
    assert host.ratio is not None
    assert host_worth(before, host.name, ratio) == getattr(host.ratio, ratio).value
    rows = measured.rows
    key = CalibrationKey.of(DIGITS, SHAPE, host.name)
    own = make_table({row.batch_size: row.seconds.total for row in rows}, key, clock="wall", image="")
    kept.save(structs.replace(own, rows=tuple(structs.replace(row, of=own.row_mark) for row in own.rows)))
    found = device_classes(config, kept.of(DIGITS, SHAPE), SyncSection(), ratio)
    here = found["host"].speed.seconds(batch)
    whole = own.step_seconds(batch)
    largest = own.batches[-1]
    drive = make_table(COSTS).device_seconds(largest, get_profile("newport"))
    assert here >= (whole.forward + whole.backward + own.encode_seconds_median) * (1 - 1e-2)
    assert kept.find(DIGITS, SHAPE, "newport") == make_table(COSTS)
    assert "wall, xeon-4108 core" in found["host"].clock
    worth = host_worth(kept.of(DIGITS, SHAPE), host.name, ratio)
    assert worth == pytest.approx(drive.total / own.step_seconds(largest).total)
    models = table_models(config, DIGITS, SHAPE, kept)
    assert models["host"].step_seconds(batch) == whole
    assert models["host"].at("high").step_seconds(batch) == whole


@pytest.mark.slow
def test_a_real_drives_table_is_taken_as_it_is(tmp_path: Path) -> None:
    kept = store(tmp_path)
    key = make_table(COSTS).key
    real = make_table({1: 1.0, 2: 2.0}, type(key).of(DIGITS, SHAPE, "newport"), clock="wall", encode_seconds=(0.5,))
    kept.save(real)
    found = device_classes(array("newport", "solana"), kept.of(DIGITS, SHAPE), SyncSection())
    assert found["csd-00"].speed.seconds(2) == pytest.approx(0.9 * 2 + 0.5)
    assert "wall" in found["csd-00"].clock
    assert "counted" in found["csd-01"].clock


@pytest.mark.slow
@given(tables(), st.integers(1, 3000))
@settings(max_examples=examples(50))
def test_any_table_makes_one_that_tuners_take(tmp_path_factory: pytest.TempPathFactory, table: object, b: int) -> None:
    assert isinstance(table, CalibrationTable)
    folder = tmp_path_factory.mktemp("store")
    found = classes(array("generic-a53"), folder, table=table)["csd-00"].speed
    assert found.largest_batch == LARGEST_BATCH
    # Where the table itself never falls, the dense one follows it.
    exact = [table.step_seconds(n) for n in sorted({1, b, *table.batches})]
    costs = np.array([step.forward + step.backward for step in exact])
    here = np.array([found.seconds(n) for n in sorted({1, b, *table.batches})]) - table.encode_seconds_median
    assert np.all(here >= costs * (1 - 1e-2))


@given(st.lists(st.floats(1e-3, 10), min_size=1, max_size=40).map(sorted), st.floats(0, 1), st.integers(1, 200))
def test_a_step_larger_than_memory_is_computed_in_parts_and_encoded_once(
    seconds: list[float], encode: float, largest: int
) -> None:
    whole = accumulated(np.array(seconds), encode, largest)
    assert len(whole) == largest
    m = len(seconds)
    most = 0.0
    for batch in range(1, largest + 1):
        parts = [len(part) for part in np.array_split(np.arange(batch), -(-batch // m))]
        most = max(most, sum(seconds[part - 1] for part in parts) + encode)
        assert whole[batch - 1] == pytest.approx(most)


@pytest.mark.slow
def test_memory_bounds_what_is_computed_at_once_and_larger_batches_accumulate(tmp_path: Path) -> None:
    table = make_table(COSTS)
    rows = tuple(
        type(row)(row.of, row.batch_size, row.steps, (200 + 50 * row.batch_size) << 20, row.wall_seconds)
        for row in table.rows
    )
    table = make_table(COSTS, rows=rows)
    small = classes(array("newport", memory="1 GiB"), tmp_path, table=table)["csd-00"]
    # 200 MiB + 50 MiB per record in 1024 - 256 MiB.
    assert small.memory.available_bytes == (1 << 30) - RESERVE_BYTES
    assert small.micro_batch == 11
    assert small.speed.largest_batch == LARGEST_BATCH
    assert small.needed_bytes(12) == small.needed_bytes(11) <= small.memory.available_bytes
    assert small.memory.needed_bytes(12) > small.memory.available_bytes
    # The profile's own DRAM is the bound where the machine has more, and where there is no machine.
    assert classes(array("newport", memory="16 GiB"), tmp_path)["csd-00"].memory.device_bytes == 6 << 30
    assert classes(array("newport", engine="native"), tmp_path)["csd-00"].memory.device_bytes == 6 << 30
    # Synchronised statistics need the whole batch at once; a job may ask for less than memory holds.
    synchronised = classes(array("newport", memory="1 GiB"), tmp_path, SyncSection(batch_norm="synchronised"), table)
    assert synchronised["csd-00"].speed.largest_batch == 11
    bounded = classes(array("newport"), tmp_path, SyncSection(micro_batch=4, tuning={"largest_batch": 9}))["csd-00"]  # type: ignore[arg-type]
    assert (bounded.micro_batch, bounded.speed.largest_batch) == (4, 9)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["qemu", "native"])
def test_batches_of_sampled_drives_are_those_of_counted_ones_for_a_machine_counts_them(
    tmp_path: Path, engine: str
) -> None:
    counted = array("newport", "generic-a53", memory="1 GiB", trains=True)
    sampled = array("newport", "generic-a53", memory="1 GiB", trains=True, engine=engine)
    sampled = sampled.model_copy(update={"clock": "sampled"})
    found = classes(sampled, tmp_path)
    memories = {name: (each.memory.device_bytes, each.memory.available_bytes) for name, each in found.items()}
    for name, each in classes(counted, tmp_path).items():
        assert memories.pop(name) == (each.memory.device_bytes, each.memory.available_bytes)
    assert not memories
    assert found["csd-00"].memory.device_bytes == 1 << 30
    assert found["host"].memory.device_bytes == get_profile("xeon-4108").dram_bytes.value


def test_a_shard_in_memory_is_not_free_for_a_batch(tmp_path: Path) -> None:
    free = (2 << 30) - RESERVE_BYTES
    for shard, left in ((0, free), (free // 4, free - free // 4), (free // 4 + 1, free)):
        found = device_classes(array("newport"), store(tmp_path).of(DIGITS, SHAPE), SyncSection(), shard_bytes=shard)
        assert found["csd-00"].memory.available_bytes == left


def test_a_device_whose_smallest_batch_does_not_fit_is_named(tmp_path: Path) -> None:
    table = make_table(COSTS)
    rows = tuple(type(row)(row.of, row.batch_size, row.steps, 3 << 30, row.wall_seconds) for row in table.rows)
    with pytest.raises(ConfigurationError, match=r"csd-00: one record of digits_cnn at 1x8x8 needs 3\.2 GB.*1\.9 GB"):
        classes(array("newport", "solana"), tmp_path, table=make_table(COSTS, rows=rows))


def test_without_a_table_the_command_that_makes_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="csd-emu calibrate digits_cnn"):
        device_classes(array("newport"), CalibrationStore(tmp_path, tmp_path).of(DIGITS, SHAPE), SyncSection())


@pytest.mark.slow
def test_the_error_is_that_of_rows_with_one_below_them(tmp_path: Path) -> None:
    error = classes(array("newport"), tmp_path)["csd-00"].speed.error
    expected = make_table(COSTS).error_estimate()
    assert error == max(abs(expected[batch]) for batch in (2, 4, 8))
    assert math.isnan(classes(array("newport"), tmp_path, table=make_table({1: 1.0, 2: 2.0}))["csd-00"].speed.error)
