import contextlib
import hashlib
import io
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_agent.common.archive import list_archive, read_member, write_archive
from firmware_agent.common.errors import ShardError
from firmware_agent.common.shard import MANIFEST, open_shard, write_shard
from tests.support.examples import examples

IMAGES = np.arange(6 * 64, dtype=np.uint8).reshape(6, 1, 8, 8)
LABELS = np.array([0, 1, 2, 1, 1, 4], np.int64)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_shard(tmp_path / "shard.tar", "digits", {"image": IMAGES, "label": LABELS})
    return tmp_path / "shard.tar"


@given(
    samples=st.integers(1, 20),
    side=st.integers(1, 5),
    dtype=st.sampled_from([np.uint8, np.float32, np.int16]),
    seed=st.integers(0, 999),
)
def test_a_shard_comes_back_as_it_was_written(
    samples: int, side: int, dtype: Any, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("shard") / "shard.tar"
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 100, (samples, side, side)).astype(dtype)
    labels = generator.integers(0, 7, samples)
    digest = write_shard(path, "random", {"image": images, "label": labels})
    shard = open_shard(path)
    np.testing.assert_array_equal(shard.fields["image"], images)
    np.testing.assert_array_equal(shard.fields["label"], labels)
    assert shard.fields["image"].dtype == dtype
    assert shard.manifest_sha256 == digest == hashlib.sha256(read_member(path, MANIFEST)).hexdigest()
    assert shard.manifest.samples == samples == sum(shard.manifest.classes)
    assert shard.manifest.classes == tuple(np.bincount(labels))


def test_a_transposed_array_is_stored_in_order(tmp_path: Path) -> None:
    images = np.arange(12, dtype=np.uint8).reshape(3, 4).T
    write_shard(tmp_path / "s.tar", "t", {"image": images, "label": np.zeros(4, np.int64)})
    np.testing.assert_array_equal(open_shard(tmp_path / "s.tar").fields["image"], images)


def test_arrays_are_mapped_and_cannot_be_written(path: Path) -> None:
    shard = open_shard(path)
    assert isinstance(shard.fields["image"], np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        shard.fields["image"][0] = 0


def test_it_is_private_and_may_lie_on_a_longer_device(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600
    with open(path, "ab") as device:
        device.write(bytes(100_000))
    np.testing.assert_array_equal(open_shard(path).fields["image"], IMAGES)


@settings(max_examples=examples(150))
@given(data=st.data())
def test_every_flipped_byte_of_an_array_is_caught(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("shard") / "shard.tar"
    write_shard(path, "digits", {"image": IMAGES, "label": LABELS})
    file = data.draw(st.sampled_from(["image.npy", "label.npy"]))
    member = list_archive(path)[file]
    flip(path, member.offset + data.draw(st.integers(0, member.size - 1)), data.draw(st.integers(1, 255)))
    with pytest.raises(ShardError, match=rf"{file} does not match its sha256.*csd-emu down"):
        open_shard(path)


@settings(max_examples=examples(300))
@given(data=st.data())
def test_a_flipped_byte_anywhere_never_gives_other_data(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In a tar header or in padding a flip may do no harm; in the manifest it may only change the manifest's hash."""
    path = tmp_path_factory.mktemp("shard") / "shard.tar"
    digest = write_shard(path, "digits", {"image": IMAGES, "label": LABELS})
    flip(path, data.draw(st.integers(0, path.stat().st_size - 1)), data.draw(st.integers(1, 255)))
    with contextlib.suppress(ShardError):
        shard = open_shard(path)
        if shard.manifest_sha256 == digest:
            np.testing.assert_array_equal(shard.fields["image"], IMAGES)
            np.testing.assert_array_equal(shard.fields["label"], LABELS)


@given(share=st.floats(0, 0.99))
def test_a_shard_cut_short_is_refused(share: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("shard") / "shard.tar"
    write_shard(path, "digits", {"image": IMAGES, "label": LABELS})
    last = max(member.offset + member.size for member in list_archive(path).values())
    path.write_bytes(path.read_bytes()[: int(last * share)])
    with pytest.raises(ShardError, match=r"shard\.tar"):
        open_shard(path)


@pytest.mark.parametrize("missing", [MANIFEST, "image.npy", "label.npy"])
def test_a_missing_member_is_named(path: Path, missing: str) -> None:
    rewrite(path, drop=missing)
    with pytest.raises(ShardError, match=missing):
        open_shard(path)


def test_another_format_is_named(path: Path) -> None:
    rewrite(path, format="csd-shard/9")
    with pytest.raises(ShardError, match=r"csd-shard/9.*csd-shard/3.*upgrade"):
        open_shard(path)


@pytest.mark.parametrize(
    ("array", "changes", "match"),
    [
        ("image", {"shape": (3, 2, 8, 8)}, "the manifest says"),
        ("image", {"dtype": "|i1"}, "the manifest says"),
        ("image", {"sha256": "0" * 64}, "does not match its sha256"),
        ("image", {"file": "other.npy"}, r"other\.npy is missing"),
        ("label", {"shape": (5,)}, "the manifest says"),
    ],
)
def test_a_manifest_that_is_not_true_is_refused(path: Path, array: str, changes: dict[str, Any], match: str) -> None:
    manifest = msgspec.json.decode(read_member(path, MANIFEST))
    manifest["arrays"][array] |= changes
    rewrite(path, **manifest)
    with pytest.raises(ShardError, match=match):
        open_shard(path)


def test_a_wrong_number_of_samples_and_a_manifest_without_arrays_are_refused(path: Path) -> None:
    manifest = msgspec.json.decode(read_member(path, MANIFEST))
    rewrite(path, samples=5)
    with pytest.raises(ShardError, match="5 samples"):
        open_shard(path)
    rewrite(path, **manifest | {"arrays": {}})
    with pytest.raises(ShardError, match="the manifest has 0 arrays, of 1 to 64"):
        open_shard(path)


def test_a_manifest_that_is_no_manifest_is_refused(path: Path) -> None:
    for content in (b"", b"{}", b"[1]", b"\xff\xfe", b'{"format": 1}'):
        files = {name: read_member(path, name) for name in list_archive(path)}
        write_archive(path, files | {MANIFEST: content})
        with pytest.raises(ShardError, match=r"manifest\.json cannot be read"):
            open_shard(path)
    rewrite_raw = {"format": "csd-shard/3", "unknown": 1}
    write_archive(path, {MANIFEST: msgspec.json.encode(rewrite_raw)})
    with pytest.raises(ShardError, match="cannot be read"):
        open_shard(path)


def test_an_array_that_needs_pickle_is_never_loaded(path: Path) -> None:
    """The hashes are right, so only the dtype stands between this file and pickle."""
    buffer = io.BytesIO()
    np.save(buffer, np.array([{}, {}, {}, {}, {}, {}], dtype=object), allow_pickle=True)
    manifest = msgspec.json.decode(read_member(path, MANIFEST))
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    manifest["arrays"]["image"] |= {"dtype": "|O", "shape": [6], "sha256": digest}
    files = {name: read_member(path, name) for name in list_archive(path)}
    write_archive(path, files | {MANIFEST: msgspec.json.encode(manifest), "image.npy": buffer.getvalue()})
    with pytest.raises(ShardError):
        open_shard(path)


def test_nothing_that_is_no_shard_is_written(tmp_path: Path) -> None:
    for images, labels in ((IMAGES[:2], LABELS), (IMAGES[:0], LABELS[:0])):
        with pytest.raises(ShardError, match="do not make a shard"):
            write_shard(tmp_path / "s.tar", "x", {"image": images, "label": labels})
    assert not list(tmp_path.iterdir())


def flip(path: Path, position: int, mask: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= mask
    path.write_bytes(content)


def rewrite(path: Path, drop: str = "", **changes: Any) -> None:
    """Write the archive anew with a changed manifest, or without one file."""
    files = {name: read_member(path, name) for name in list_archive(path)}
    files[MANIFEST] = msgspec.json.encode(msgspec.json.decode(files[MANIFEST]) | changes)
    write_archive(path, {name: content for name, content in files.items() if name != drop})
