"""Bundles: the same files give the same bytes, parts are whole, and what is damaged is refused."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.image.wheels import read_lock
from csd_emu.util.file_hash import file_sha256
from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit, ImageError
from host.deploy.bundle.bundle_recipe import default_folder, load_recipe
from host.deploy.bundle.layer_archives import Layer, pack_layer, read_layer
from tests.support.examples import examples

NAMES = st.text("abcdef", min_size=1, max_size=3)
FILES = st.dictionaries(st.tuples(NAMES, NAMES), st.tuples(st.binary(max_size=300), st.booleans()), max_size=12)


def write(tree: Path, files: dict[tuple[str, str], tuple[bytes, bool]]) -> None:
    for (folder, name), (content, runs) in files.items():
        path = tree / f"d{folder}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o711 if runs else 0o600)


def pack(tree: Path, target: Path, part_bytes: int) -> Layer:
    target.mkdir()
    return pack_layer(tree, target, part_bytes)


def unpack(folder: Path, layer: Layer) -> dict[str, tuple[bytes, int, int]]:
    found: dict[str, tuple[bytes, int, int]] = {}
    for part in layer.parts:
        content = (folder / part.file).read_bytes()
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(content))) as tar:
            for member in tar:
                assert member.name not in found
                file = tar.extractfile(member) if member.isfile() else None
                found[member.name] = (file.read() if file else b"", member.mode, member.uid)
    return found


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(30))
@given(files=FILES, part_bytes=st.integers(1, 20_000))
def test_parts_hold_every_file_once_and_do_not_depend_on_who_made_them(
    tmp_path_factory: pytest.TempPathFactory, files: dict[tuple[str, str], tuple[bytes, bool]], part_bytes: int
) -> None:
    root = tmp_path_factory.mktemp("pack")
    one, two = root / "one", root / "two"
    for tree in (one, two):
        tree.mkdir()
        write(tree, files if tree is one else dict(reversed(files.items())))
    for path in two.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    first, second = pack(one, root / "packed-one", part_bytes), pack(two, root / "packed-two", part_bytes)
    assert first == second
    assert read_layer(root / "packed-one") == first
    found = unpack(root / "packed-one", first)
    wanted = {
        f"d{folder}/{name}": (content, 0o755 if runs else 0o644, 0) for (folder, name), (content, runs) in files.items()
    }
    assert {name: entry for name, entry in found.items() if "/" in name} == wanted
    for part in first.parts:
        assert file_sha256(root / "packed-one" / part.file) == part.sha256


def test_links_stay_links(tmp_path: Path) -> None:
    (tree := tmp_path / "tree").mkdir()
    (tree / "site").symlink_to("../../layers/x")
    layer = pack(tree, tmp_path / "packed", 1000)
    with tarfile.open(tmp_path / "packed" / layer.parts[0].file) as tar:
        assert [(member.name, member.linkname) for member in tar] == [("site", "../../layers/x")]


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tree := tmp_path / "tree").mkdir()
    os.mkfifo(tree / "pipe")
    with pytest.raises(ImageError, match="is no file, folder or link"):
        pack(tree, tmp_path / "packed", 1000)


def test_a_bundle_that_is_damaged_is_named(tmp_path: Path) -> None:
    (tree := tmp_path / "tree").mkdir()
    (tree / "file").write_text("x")
    layer = pack(tree, tmp_path / "packed", 1000)
    (tmp_path / "packed" / layer.parts[0].file).write_bytes(b"")
    with pytest.raises(ImageError, match="has another size than it was made with"):
        read_layer(tmp_path / "packed")
    (tmp_path / "packed/layer.json").write_text("{")
    with pytest.raises(ImageError, match="this bundle is damaged"):
        read_layer(tmp_path / "packed")


def test_every_python_of_the_recipe_has_a_lock_file_with_the_same_torch() -> None:
    recipe = load_recipe(default_folder())
    torches = set()
    for version in recipe.pythons:
        pins = {requirement.pin for requirement in read_lock(recipe.wheels(version).lock_file)}
        torches |= {pin for pin in pins if pin.startswith("torch==")}
        assert {pin.partition("==")[0] for pin in pins} >= {"grpcio", "msgspec", "numpy", "pillow", "torch", "xxhash"}
    assert torches == {"torch==2.9.1"}
    with pytest.raises(ConfigurationError, match=r"Python 3\.9: there are wheels for 3.10"):
        recipe.wheels("3.9")


def test_the_drives_of_the_image_and_real_ones_get_the_same_packages() -> None:
    recipe = load_recipe(default_folder())
    image = default_folder().parent / "arm/requirements.lock"
    pins = {r.pin for r in read_lock(recipe.wheels("3.11").lock_file)}
    assert {pin for pin in pins if not pin.startswith("pillow==")} == {r.pin for r in read_lock(image)}


def test_a_recipe_that_lacks_a_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("[wheels]\n")
    with pytest.raises(EnvironmentUnfit, match=r"recipe.toml: cannot be read \(KeyError"):
        load_recipe(tmp_path)
