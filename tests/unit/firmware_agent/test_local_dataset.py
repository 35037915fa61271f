"""Records that a drive holds in place: a shard like any other, hashed once, told of without any of its content."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from firmware_agent import local_dataset as holding
from firmware_agent.common.errors import DataError
from firmware_agent.common.frames.frame_fields import TensorSpec
from firmware_agent.common.frames.session_frames import Holding
from firmware_agent.common.handover import SHARD_FILE
from firmware_agent.common.identity import Identity
from firmware_agent.common.shard import Shard, write_shard
from firmware_agent.drive import open_records
from firmware_agent.local_dataset import open_holding
from tests.unit.firmware_agent.common.datafiles.test_datafiles import noise, write_folder

IMAGES = [TensorSpec("image", "|u1", (1, 8, 8)), TensorSpec("label", "<i8", ())]
IDENTITY = Identity("lab", "csd-00", 1, "127.0.0.1:1", "wall", 0.0, b"", "", "", "")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    images, labels = noise(10, (1, 8, 8))
    np.savez(tmp_path / "x.npz", images=images, labels=labels)
    return tmp_path / "x.npz"


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The first file of each set of records whose content was gone through."""
    seen: list[Path] = []
    really = vars(holding)["blocks_of"]

    def watched(column: object, where: str) -> object:
        seen.append(Path(where))
        return really(column, where)

    monkeypatch.setattr(holding, "blocks_of", watched)
    return seen


def test_records_in_place_are_a_shard_all_private(data: Path) -> None:
    shard = open_holding(data)
    images, labels = noise(10, (1, 8, 8))
    np.testing.assert_array_equal(shard.fields["image"][np.arange(10)], images)
    np.testing.assert_array_equal(shard.fields["label"], labels)
    assert (shard.manifest.samples, shard.manifest.private_samples) == (10, 10)
    assert shard.holding == Holding("npz", IMAGES, 3)


def test_what_the_host_is_told_has_no_record_in_it(data: Path) -> None:
    """Same shape, other content: nothing but the hash differs."""
    first = open_holding(data)
    images, labels = noise(10, (1, 8, 8))
    np.savez(data, images=255 - images, labels=labels)
    second = open_holding(data)
    assert first.holding == second.holding
    assert first.manifest_sha256 != second.manifest_sha256
    assert len(msgspec.msgpack.encode(first.holding)) < 150


def test_the_content_is_hashed_once(data: Path, tmp_path: Path, hashed: list[Path]) -> None:
    cache = tmp_path / "holding.json"
    first = open_holding(data, cache)
    assert open_holding(data, cache).manifest_sha256 == first.manifest_sha256
    assert hashed == [data] * 2  # images and labels
    os.utime(data, ns=(1, 1))  # written to, or replaced
    assert open_holding(data, cache).manifest_sha256 == first.manifest_sha256
    assert hashed == [data] * 4


@pytest.mark.parametrize("content", [b"", b"{}", b'{"fingerprint": 1}', b"\xff"])
def test_a_damaged_cache_is_made_anew(content: bytes, data: Path, tmp_path: Path, hashed: list[Path]) -> None:
    cache = tmp_path / "holding.json"
    cache.write_bytes(content)
    open_holding(data, cache)
    open_holding(data, cache)
    assert hashed == [data] * 2


def test_a_cache_that_cannot_be_written_is_said(data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert isinstance(open_holding(data, tmp_path / "missing" / "holding.json"), Shard)
    assert "the records are hashed again at the next start" in caplog.text


def test_class_names_are_told(tmp_path: Path) -> None:
    images, labels = noise()
    told = open_holding(write_folder(tmp_path / "x", images, labels, ["ant", "bee", "cat", "dog"])).holding
    form = [TensorSpec("image", "|u1", (3, 5, 4)), IMAGES[1]]
    assert told == Holding("image folder", form, 4, ["ant", "bee", "cat", "dog"])


def test_records_of_any_form_lie_in_place(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal((9, 6)).astype(np.float32), generator.standard_normal((9, 1)).astype(np.float32)
    np.savez(tmp_path / "t.npz", x=x, y=y)
    save_file({"x": x, "y": y}, tmp_path / "t.safetensors")
    shard, other = open_holding(tmp_path / "t.npz"), open_holding(tmp_path / "t.safetensors")
    assert shard.holding == Holding("npz", [TensorSpec("x", "<f4", (6,)), TensorSpec("y", "<f4", (1,))], 0)
    assert shard.manifest.arrays == other.manifest.arrays
    assert (shard.manifest.classes, shard.manifest.samples) == ((), 9)
    np.testing.assert_array_equal(shard.fields["y"], y)
    y[3] += 1
    np.savez(tmp_path / "t.npz", x=x, y=y)
    assert open_holding(tmp_path / "t.npz").manifest_sha256 != shard.manifest_sha256
    x[3, 2] = np.nan
    np.savez(tmp_path / "t.npz", x=x, y=y)
    with pytest.raises(DataError, match="record 3 holds NaN"):
        open_holding(tmp_path / "t.npz")


def test_an_identity_says_what_is_trained_on(data: Path, tmp_path: Path) -> None:
    write_shard(tmp_path / SHARD_FILE, "given", dict(zip(("image", "label"), noise(4), strict=True)))
    assert open_records(IDENTITY, tmp_path, tmp_path).manifest.source == "given"
    assert open_records(msgspec.structs.replace(IDENTITY, data=str(data)), tmp_path, tmp_path).manifest.source == "npz"
