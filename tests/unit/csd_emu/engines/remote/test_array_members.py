"""Arrays of several engines, and which drives of an inventory belong to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from csd_emu.config.array_file import ArrayConfig
from csd_emu.config.engine_names import ArrayChanges
from csd_emu.engines.remote.inventory import drives_of
from firmware_agent.common.errors import ConfigurationError
from host.config.array_files import read_array

INVENTORY = """
name: rack
defaults: {profile: newport}
groups:
  old: {profile: generic-a53}
drives:
  left: {groups: [old], data: /data/left}
  middle: {groups: [old]}
  right: {}
"""


def array(folder: Path, groups: list[dict[str, Any]], **more: Any) -> Path:
    (folder / "drives.yaml").write_text(INVENTORY)
    content = {"name": "lab", "inventory": "drives.yaml", "devices": groups} | more
    path = folder / "array.yaml"
    path.write_text(str(content).replace("None", "null").replace("True", "true"))
    return path


def devices(config: ArrayConfig) -> list[tuple[str, str, str, str | None]]:
    return [(each.name, each.engine, each.profile, each.data) for each in config.list_devices()]


def test_groups_stand_beside_each_other_on_their_own_engines(tmp_path: Path) -> None:
    path = array(
        tmp_path,
        [{"profile": "newport"}, {"profile": "newport", "engine": "native"}, {"engine": "remote", "drives": ["old"]}],
    )
    config = read_array(path)
    assert devices(config) == [
        ("csd-00", "qemu", "newport", None),
        ("csd-01", "native", "newport", None),
        ("left", "remote", "generic-a53", "/data/left"),
        ("middle", "remote", "generic-a53", None),
    ]
    assert (config.engines, config.engine_label) == (("qemu", "native", "remote"), "qemu+native+remote")
    assert list(drives_of(config)) == ["left", "middle"]


def test_to_resolve_twice_changes_nothing(tmp_path: Path) -> None:
    """A run directory keeps the resolved file, and a resumed run reads that."""
    config = read_array(array(tmp_path, [{"drives": ["old", "right"]}], engine="remote"))
    again = tmp_path / "elsewhere" / "array.yaml"
    again.parent.mkdir()
    again.write_text(
        str(config.model_dump(mode="json")).replace("None", "null").replace("False", "false").replace("True", "true")
    )
    assert read_array(again) == config


def test_the_array_files_own_words_go_before_the_inventorys(tmp_path: Path) -> None:
    groups = [{"drives": ["left"], "profile": "newport", "data": "/other"}]
    assert devices(read_array(array(tmp_path, groups, engine="remote"))) == [("left", "remote", "newport", "/other")]


def test_what_cannot_be_meant_is_named(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for groups, more, message in [
        ([{"drives": ["lef"]}], {"engine": "remote"}, "no drive or group 'lef'; did you mean 'left'"),
        ([{"drives": ["xyzzy"]}], {"engine": "remote"}, "there are: left, middle, right, old"),
        ([{"drives": ["left"]}, {"drives": ["old"]}], {"engine": "remote"}, "left is named in devices.0. already"),
        ([{"drives": ["left", "left"]}], {"engine": "remote"}, "left is there twice"),
        ([{"drives": ["left"]}], {"engine": "remote", "inventory": None}, "engine: remote needs inventory"),
        ([{"profile": "newport"}], {}, "inventory: is for engine: remote, and no device has it"),
        ([{"profile": "newport"}], {"engine": "remote"}, "engine: remote needs drives"),
        ([{"drives": ["left"]}], {}, "drives: are real ones; add engine: remote"),
        ([{"drives": ["left"], "engine": "native"}], {}, "drives: are real ones of the inventory"),
        ([{"drives": ["left"], "count": 2}], {"engine": "remote"}, "count and name are for drives that are made"),
        ([{"drives": ["left"], "data": "here"}], {"engine": "remote"}, "must be an absolute path"),
        ([{"count": 2}], {"inventory": None}, "profile is missing; add it, or name real drives"),
        ([{"drives": ["left"]}], {"engine": "remote", "clock": "modelled"}, "is for native drives"),
    ]:
        with (
            subtests.test(groups=groups, more=more, message=message),
            pytest.raises(ConfigurationError, match=message),
        ):
            read_array(array(tmp_path, groups, **more))


def test_an_engine_on_the_command_line_does_not_replace_those_of_groups(tmp_path: Path) -> None:
    path = array(tmp_path, [{"profile": "newport", "engine": "native"}], inventory=None)
    with pytest.raises(ConfigurationError, match=r"--engine qemu: the groups of .* name their own engines"):
        read_array(path, ArrayChanges("qemu"))


def test_a_drive_that_left_the_inventory_is_missed(tmp_path: Path) -> None:
    config = read_array(array(tmp_path, [{"drives": ["right"]}], engine="remote"))
    (tmp_path / "drives.yaml").write_text(INVENTORY.replace("  right: {}\n", ""))
    with pytest.raises(ConfigurationError, match="drive right of array 'lab' is not there any more"):
        drives_of(config)
