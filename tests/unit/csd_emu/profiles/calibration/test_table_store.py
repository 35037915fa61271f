import os
import stat
from pathlib import Path

import pytest

from csd_emu.profiles import get_profile
from csd_emu.profiles.calibration import CalibrationKey, CalibrationStore, CalibrationTable, load_table, table_store
from csd_emu.profiles.calibration.table_check import encode_table
from csd_emu.profiles.calibration.table_key import core_name
from csd_emu.profiles.calibration.table_store import SHIPPED
from firmware_agent.common.errors import CalibrationError
from firmware_agent.common.shipped_code import ShippedCode
from tests.support.calibration import DIGITS, make_table, with_cycles

SPEC, SHAPE = ShippedCode("digits_cnn"), (1, 8, 8)
COSTS = {1: 0.1, 2: 0.15, 4: 0.25}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "shipped").mkdir()
    return tmp_path / "user", tmp_path / "shipped"


def snapshot(*folders: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}


def test_what_is_saved_is_found(folders: tuple[Path, Path]) -> None:
    store, table = CalibrationStore(*folders), make_table(COSTS)
    assert store.find(SPEC, SHAPE) is None
    path = store.save(table)
    assert path == folders[0] / "digits_cnn-1x8x8.json"
    assert store.find(SPEC, SHAPE) == table
    assert store.locate(SPEC, SHAPE) == (path, table)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert list(folders[0].iterdir()) == [path]


def test_the_users_table_goes_before_the_shipped_one(folders: tuple[Path, Path]) -> None:
    shipped, own = make_table(COSTS), make_table({1: 1.0, 2: 2.0})
    store = CalibrationStore(*folders)
    store.save(shipped, folders[1] / DIGITS.file_name)
    assert store.find(SPEC, SHAPE) == shipped
    store.save(own)
    assert store.find(SPEC, SHAPE) == own


def test_a_drives_own_table_goes_before_the_reference_core(folders: tuple[Path, Path]) -> None:
    store = CalibrationStore(*folders)
    drive = make_table(COSTS, CalibrationKey.of(SPEC, SHAPE, "newport"), clock="wall")
    store.save(make_table(COSTS))
    store.save(drive)
    assert store.find(SPEC, SHAPE, "newport") == drive
    assert store.require(SPEC, SHAPE, "solana") == store.find(SPEC, SHAPE) == make_table(COSTS)


def test_a_jobs_table_goes_before_the_models_plain_one(folders: tuple[Path, Path]) -> None:
    store = CalibrationStore(*folders).counting("instructions").of_task("ab")
    plain, own = make_table(COSTS), make_table(COSTS, CalibrationKey.of(SPEC, SHAPE, task="ab"), task="ab")
    with pytest.raises(CalibrationError, match=r"for records of 1x8x8; .* csd-emu calibrate JOB\.YAML"):
        store.require(SPEC, SHAPE)
    store.save(plain)
    assert store.find(SPEC, SHAPE) == store.counting("instructions").find(SPEC, SHAPE) == plain
    path = store.save(own)
    assert path.name.startswith("digits_cnn-1x8x8-")
    assert load_table(path).task == "ab"
    assert store.find(SPEC, SHAPE) == own
    assert store.of_task("").find(SPEC, SHAPE) == store.of_task("cd").find(SPEC, SHAPE) == plain


def test_a_plain_table_is_called_and_written_as_before_there_were_others() -> None:
    key = CalibrationKey.of(ShippedCode("net.py:build", "x = 1"), SHAPE)
    assert key.digest == "1b2bfc039aed6817f4b6a93e51acb0a8d8cfa6720c98bd7350ccd8b0f48c00f3"
    assert key.file_name == "net.py-build-1x8x8-123d5ab2.json"
    assert b"task" not in encode_table(make_table(COSTS))


def test_a_table_that_is_missing_says_how_to_make_it(folders: tuple[Path, Path]) -> None:
    with pytest.raises(CalibrationError, match=r"'digits_cnn'.*1x8x8; .* csd-emu calibrate digits_cnn --input 1x8x8"):
        CalibrationStore(*folders).require(SPEC, SHAPE)


def test_a_changed_model_file_does_not_get_the_old_files_table(folders: tuple[Path, Path]) -> None:
    store = CalibrationStore(*folders)
    old, new = ShippedCode("net.py:build", "x = 1"), ShippedCode("net.py:build", "x = 2")
    store.save(make_table(COSTS, CalibrationKey.of(old, SHAPE)))
    assert store.find(old, SHAPE) is not None
    assert store.find(new, SHAPE) is None


def test_a_table_under_another_ones_name_is_refused(folders: tuple[Path, Path]) -> None:
    store = CalibrationStore(*folders)
    other = CalibrationKey.of(ShippedCode("digits_cnn", None, {"num_classes": 3}), SHAPE)
    store.save(make_table(COSTS, other), folders[0] / DIGITS.file_name)
    with pytest.raises(
        CalibrationError, match=r"digits_cnn-1x8x8\.json: is of digits_cnn .*3.* not of digits_cnn .*10"
    ):
        store.find(SPEC, SHAPE)


def test_a_damaged_table_is_named_and_never_skipped(folders: tuple[Path, Path]) -> None:
    """The user's table goes before the shipped one even if it is damaged: a figure must not change unseen."""
    store = CalibrationStore(*folders)
    store.save(make_table(COSTS), folders[1] / DIGITS.file_name)
    path = store.save(make_table(COSTS))
    path.write_bytes(path.read_bytes()[:-40])
    before = snapshot(*folders)
    with pytest.raises(CalibrationError, match=r"user/digits_cnn-1x8x8\.json: is no calibration table"):
        store.find(SPEC, SHAPE)
    assert snapshot(*folders) == before


def test_a_bad_table_is_not_saved_and_the_old_one_stays(folders: tuple[Path, Path]) -> None:
    store = CalibrationStore(*folders)
    store.save(make_table(COSTS))
    before = snapshot(*folders)
    for bad in (make_table({1: 1.0}), make_table({1: 1.0, 2: 0.5}), make_table({1: float("nan"), 2: 1.0})):
        with pytest.raises(CalibrationError, match=r"digits_cnn-1x8x8\.json"):
            store.save(bad)
    assert snapshot(*folders) == before


def test_a_write_that_fails_leaves_the_old_table_and_no_trace(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CalibrationStore(*folders)
    store.save(make_table(COSTS))
    before = snapshot(*folders)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.save(make_table({1: 5.0, 2: 6.0}))
    assert snapshot(*folders) == before


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"nothing\.json: cannot be read"):
        load_table(tmp_path / "nothing.json")


def test_every_shipped_table_is_sound_under_its_own_name() -> None:
    store = CalibrationStore(Path(os.devnull), SHIPPED)
    shipped = sorted(SHIPPED.glob("*.json"))
    assert shipped
    for path in shipped:
        table = load_table(path)
        assert path.name == table.key.file_name
        assert (table.clock, table.core) == ("counted", "reference")
        assert path.read_bytes() == encode_table(table)
        found = store.find(ShippedCode(table.model, None, table.arguments), table.input_shape)
        assert found == table.in_instructions()


RATIOS = {"forward": 1.5, "backward": 2.0, "update": 3.5, "encode": 2.5}
PI = "raspberry-pi-3-b-plus"


def counted_on(profile: str, slower: float = 1.0) -> CalibrationTable:
    """A table with the cycles of a profile's core, `slower` times as many as those of the reference core."""
    core = get_profile(profile).core_parameters
    table = make_table(COSTS, CalibrationKey.of(SPEC, SHAPE, core_name(core)))
    return with_cycles(table, {phase: slower * ratio for phase, ratio in RATIOS.items()}, core.digest)


def test_a_profile_gets_the_cycles_of_its_own_core_and_of_no_other(folders: tuple[Path, Path]) -> None:
    store = CalibrationStore(*folders, "cycles")
    reference, own = counted_on("generic-a53"), counted_on(PI, 1.25)
    assert reference.core == "reference"
    store.save(reference)
    path = store.save(own)
    assert path.name == f"digits_cnn-1x8x8-core.{get_profile(PI).core_parameters.digest}.json"
    assert store.find(SPEC, SHAPE, PI) == own.in_cycles()
    for other in ("newport", "am625", "generic-a53", "xeon-4108", None):
        assert store.find(SPEC, SHAPE, other) == reference.in_cycles()
    assert store.find_counted(SPEC, SHAPE, PI) == (own.in_instructions(), own.in_cycles())
    assert store.find_counted(SPEC, SHAPE, "newport") == (reference.in_instructions(), reference.in_cycles())
    instructions = store.counting("instructions")
    assert instructions.find(SPEC, SHAPE, PI) == reference.in_instructions()
    assert instructions.find_counted(SPEC, SHAPE, PI) == store.find_counted(SPEC, SHAPE, PI)


def test_a_core_of_its_own_scales_as_the_reference_core_does(folders: tuple[Path, Path]) -> None:
    """In instructions both are the same core; in cycles the own one takes as much longer as it was counted to."""
    reference, own, profile = counted_on("generic-a53"), counted_on(PI, 1.25), get_profile(PI)
    for batch in (1, 3, 4):
        assert own.device_seconds(batch, profile) == reference.device_seconds(batch, profile)
        longer = own.in_cycles().step_seconds(batch).total / reference.in_cycles().step_seconds(batch).total
        assert longer == pytest.approx(1.25, rel=1e-6)


def test_a_real_drives_own_table_goes_before_that_of_its_core_but_not_for_a_virtual_one(
    folders: tuple[Path, Path],
) -> None:
    store = CalibrationStore(*folders, "cycles")
    drive = make_table(COSTS, CalibrationKey.of(SPEC, SHAPE, PI), clock="wall")
    own = counted_on(PI)
    store.save(own)
    store.save(drive)
    assert store.find(SPEC, SHAPE, PI) == drive
    assert store.find_counted(SPEC, SHAPE, PI) == (own.in_instructions(), own.in_cycles())


def test_a_named_core_that_was_not_counted_is_told_once_and_the_reference_core_stands_in(
    folders: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    table_store._warn_once.cache_clear()
    store = CalibrationStore(*folders, "cycles")
    reference = counted_on("generic-a53")
    store.save(reference)
    assert store.find(SPEC, SHAPE, "newport") == reference.in_cycles()  # which names no core
    assert store.counting("instructions").find(SPEC, SHAPE, PI) == reference.in_instructions()
    assert not caplog.records
    for _ in range(3):
        assert store.find(SPEC, SHAPE, PI) == reference.in_cycles()
    (record,) = caplog.records
    assert f"csd-emu calibrate digits_cnn --input 1x8x8 --profile {PI}" in record.getMessage()


def test_another_clock_is_another_core(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CSD_EMU_HOME", str(folders[0]))
    store, path = CalibrationStore(*folders, "cycles"), folders[0] / "state" / "profiles" / "lab.yaml"
    path.parent.mkdir(parents=True)
    reference = counted_on("generic-a53")
    store.save(reference)
    for clock, found in (("1.2 GHz", True), ("1.3 GHz", False), ("9 GHz", False), ("1.2 GHz", True)):
        path.write_text(f"base: newport\nclock: {{value: {clock}, source: drawn}}\n")
        own = counted_on("lab", 1.25) if clock == "1.2 GHz" else None
        if own is not None:
            store.save(own)
        expected = own if found and own is not None else reference
        assert store.find(SPEC, SHAPE, "lab") == expected.in_cycles()


def test_cycles_of_one_core_under_the_name_of_another_are_refused(folders: tuple[Path, Path]) -> None:
    store = CalibrationStore(*folders, "cycles")
    path = store.save(counted_on("rk3399-little"))
    path.rename(folders[0] / counted_on(PI).key.file_name)
    with pytest.raises(CalibrationError, match=r"is of digits_cnn .* on core core\..*, not of .* on core core\."):
        store.find(SPEC, SHAPE, PI)
