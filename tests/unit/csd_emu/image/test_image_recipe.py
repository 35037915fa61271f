import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.image.image_recipe import image_folder, load_recipe, source_files, tree_hash
from csd_emu.image.wheels import read_lock
from firmware_agent.common.errors import ImageError


def test_the_shipped_recipe_is_whole() -> None:
    recipe = load_recipe(image_folder())
    assert (recipe.suite, recipe.python) == ("bookworm", "3.11")
    assert recipe.disk_bytes % 4096 == 0
    for name in ("init", "check/check.py", "check/check.conf", "overlay/etc/systemd/system/csd-agent.service"):
        assert (recipe.folder / name).is_file()
    assert not set(recipe.enable) & set(recipe.mask)
    assert not set(recipe.install) & set(recipe.without)
    pins = {requirement.pin for requirement in read_lock(recipe.wheels.lock_file)}
    # Later wheels die of SIGILL on a Cortex-A53.
    assert "torch==2.9.1" in pins


def test_no_file_of_the_recipe_holds_an_index_address() -> None:
    for path in source_files(image_folder()):
        assert "://" not in path.read_text(encoding="utf-8"), path


@given(files=st.dictionaries(st.text("ab.", min_size=1, max_size=3), st.binary(max_size=4), max_size=3))
def test_hash_follows_names_and_contents_only(
    files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    files = {name: data for name, data in files.items() if name.strip(".")}
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    for folder in (one, two):
        for name, data in files.items():
            (folder / name).write_bytes(data)
            os.utime(folder / name, (len(folder.name), hash(folder)))
    (two / "__pycache__").mkdir()
    (two / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert tree_hash(one, "salt") == tree_hash(two, "salt")
    assert tree_hash(one, "salt") != tree_hash(one, "other")
    (two / "c").write_bytes(b"")
    assert tree_hash(one, "salt") != tree_hash(two, "salt")


def test_moving_bytes_between_names_and_contents_changes_the_hash(tmp_path: Path) -> None:
    trees = [{"x": "1", "y": "2"}, {"x": "1y2"}, {"x": "", "x1y": "2"}, {"x": "1y", "y2": ""}]
    hashes = set()
    for index, tree in enumerate(trees):
        folder = tmp_path / str(index)
        folder.mkdir()
        for name, content in tree.items():
            (folder / name).write_text(content)
        hashes.add(tree_hash(folder, ""))
    assert len(hashes) == len(trees)


@pytest.mark.parametrize("text", ["[debian]\nsuite = 1", "no toml", None])
def test_a_broken_recipe_is_one_clear_error(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "recipe.toml").write_text(text)
    with pytest.raises(ImageError, match=r"recipe\.toml.*reinstall"):
        load_recipe(tmp_path)
