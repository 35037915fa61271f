from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.config.array_file import MAX_DEVICES
from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit
from host.app.stack.drives_container import BASE_BYTES, DRIVE_BYTES, check_memory, limit_bytes
from host.app.stack.stack_settings import StackSettings


@pytest.mark.slow
@given(count=st.integers(1, MAX_DEVICES))
def test_so_many_drives_are_in_the_array(count: int) -> None:
    array = StackSettings.read({"CSD_COUNT": str(count)}).array()
    assert len(array.list_devices()) == count
    assert str(array.host.address) == "0.0.0.0"


def test_what_is_empty_or_of_others_is_as_if_not_set() -> None:
    assert StackSettings.read({"CSD_COUNT": "", "CSD_TUNER": "", "PATH": "/bin"}) == StackSettings.read({})


@pytest.mark.parametrize(("text", "watts"), [("450 W", 450.0), ("", None)])
def test_a_power_cap_is_the_arrays(text: str, watts: float | None) -> None:
    assert StackSettings.read({"CSD_POWER_CAP": text}).array().host.power_cap == watts


def test_what_cannot_be_meant_is_refused_by_its_name(subtests: pytest.Subtests) -> None:
    for name, value, why in [
        ("CSD_COUNT", "0", "greater than or equal to 1"),
        ("CSD_COUNT", "-1", "greater than or equal to 1"),
        ("CSD_COUNT", "four", "valid integer"),
        ("CSD_COUNT", "1.5", "valid integer"),
        ("CSD_COUNT", str(MAX_DEVICES + 1), f"less than or equal to {MAX_DEVICES}"),
        ("CSD_PROFILE", "newprot", "choose one of"),
        ("CSD_PROFILE", "xeon-4108", "not a drive"),
        ("CSD_DRAM", "2", "has no unit"),
        ("CSD_DRAM", "100 GiB", "between 1 GiB"),
        ("CSD_POWER_CAP", "450", "has no unit"),
        ("CSD_POWER_CAP", "-1 W", "not a quantity"),
        ("CSD_TUNER", "magic", "'hypertune'"),
        ("CSD_HOST", "a b", "pattern|lower-case"),
    ]:
        with (
            subtests.test(name=name, value=value, why=why),
            pytest.raises(ConfigurationError, match=rf"environment: {name}: .*({why}).*correct it in \.env"),
        ):
            StackSettings.read({name: value})


@given(count=st.integers(1, MAX_DEVICES), limit=st.none() | st.integers(0, 1 << 40), available=st.integers(0, 1 << 40))
def test_drives_fit_if_and_only_if_the_least_that_they_need_does(count: int, limit: int | None, available: int) -> None:
    fits = BASE_BYTES + count * DRIVE_BYTES <= min(available, available if limit is None else limit)
    if fits:
        check_memory(count, limit, available)
    else:
        with pytest.raises(EnvironmentUnfit, match=rf"CSD_COUNT={count} drives need .*lower CSD_COUNT or"):
            check_memory(count, limit, available)


def test_a_container_limit_is_read_from_either_version_of_control_groups(tmp_path: Path) -> None:
    new, old = tmp_path / "memory.max", tmp_path / "limit_in_bytes"
    assert limit_bytes((new, old)) is None
    old.write_text(f"{BASE_BYTES}\n")
    assert limit_bytes((new, old)) == BASE_BYTES
    new.write_text("max\n")
    old.write_text(str(2**63 - 4096))
    assert limit_bytes((new, old)) is None
    new.write_text("1048576\n")
    assert limit_bytes((new, old)) == 1 << 20
