"""Records in the files that people have: what is written is read, lazily, and what is wrong is named."""

from __future__ import annotations

import builtins
import gzip
import io
import json
import struct
import time
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from safetensors.numpy import save_file

from firmware_agent.common.datafiles import RecordSource, blocks_of, open_source
from firmware_agent.common.datafiles.record_set import labels_of
from firmware_agent.common.errors import DataError
from firmware_agent.local_dataset import open_holding
from tests.support.examples import examples

Array = npt.NDArray[Any]


def idx_bytes(array: Array) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder: Path, images: Array, labels: Array, name: str = "train") -> Path:
    (folder / f"{name}-images-idx3-ubyte").write_bytes(idx_bytes(images))
    (folder / f"{name}-labels-idx1-ubyte").write_bytes(idx_bytes(labels.astype(np.uint8)))
    return folder


def write_folder(folder: Path, images: Array, labels: Array, names: list[str], suffix: str = "png") -> Path:
    for name in names:
        (folder / name).mkdir(parents=True)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        pixels = image[0] if image.shape[0] == 1 else image.transpose(1, 2, 0)
        Image.fromarray(np.ascontiguousarray(pixels)).save(folder / names[label] / f"{number:03}.{suffix}")
    return folder


def noise(samples: int = 6, shape: tuple[int, ...] = (3, 5, 4), classes: int = 3) -> tuple[Array, Array]:
    generator = np.random.default_rng(samples)
    return generator.integers(0, 256, (samples, *shape), np.uint8), np.arange(samples) % classes


def everything(source: RecordSource) -> Array:
    return source.train.fields["image"][np.arange(len(source.train))]


arrays = hnp.arrays(np.uint8, st.tuples(st.integers(1, 5), st.just(1), st.integers(1, 6), st.integers(1, 6)))


@settings(max_examples=examples(25))
@given(images=arrays, data=st.data(), form=st.sampled_from(["idx", "idx.gz", "npz", "npz compressed", "safetensors"]))
def test_what_is_written_is_read(
    images: Array, data: st.DataObject, form: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    labels = data.draw(hnp.arrays(np.int64, len(images), elements=st.integers(0, 200)))
    folder = tmp_path_factory.mktemp("data")
    path = folder / f"x.{form.split()[0]}"
    if form.startswith("idx"):
        path = write_idx(folder, images[:, 0], labels)
        if form == "idx.gz":
            for file in list(folder.iterdir()):
                file.with_name(file.name + ".gz").write_bytes(gzip.compress(file.read_bytes()))
                file.unlink()
    elif form == "safetensors":
        save_file({"images": images, "labels": labels}, path)
    else:
        (np.savez if form == "npz" else np.savez_compressed)(path, images=images, labels=labels)
    source = open_source(path)
    np.testing.assert_array_equal(everything(source), images)
    np.testing.assert_array_equal(labels_of(source.train.fields), labels)
    assert source.train.fields["label"].dtype == np.int64
    assert source.train.classes == labels.max() + 1
    assert b"".join(blocks_of(source.train.fields["image"], "")) == images.tobytes()


@pytest.mark.parametrize("form", ["idx", "npz", "safetensors", "cifar"])
def test_large_files_are_not_read_to_open_them(form: str, tmp_path: Path) -> None:
    images, labels = noise(8, (1, 4, 4))
    path = tmp_path / f"x.{form}"
    if form == "idx":
        path = write_idx(tmp_path, images[:, 0], labels)
    elif form == "npz":
        np.savez(path, images=images, labels=labels)
    elif form == "safetensors":
        save_file({"images": images, "labels": labels}, path)
    else:
        path = write_cifar(tmp_path, 1)
    found = open_source(path).train.fields["image"]
    parts = getattr(found, "_parts", [found])
    for part in parts:
        while not isinstance(part, np.memmap):
            assert part.base is not None
            part = part.base


def write_cifar(folder: Path, label_bytes: int) -> Path:
    generator = np.random.default_rng(0)
    names = ["data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"] if label_bytes == 1 else ["train.bin"]
    for name in names:
        (folder / name).write_bytes(generator.integers(0, 10, (4, label_bytes + 3072), np.uint8).tobytes())
    return folder


@pytest.mark.parametrize("label_bytes", [1, 2])
def test_cifar_is_read_file_after_file(label_bytes: int, tmp_path: Path) -> None:
    source = open_source(write_cifar(tmp_path, label_bytes))
    files = sorted(path for path in tmp_path.iterdir() if "test" not in path.name)
    records = np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8).reshape(-1, label_bytes + 3072)
    assert source.kind == f"CIFAR-{10 if label_bytes == 1 else 100}"
    np.testing.assert_array_equal(everything(source), records[:, label_bytes:].reshape(-1, 3, 32, 32))
    np.testing.assert_array_equal(labels_of(source.train.fields), records[:, label_bytes - 1])
    order = np.random.default_rng(1).permutation(len(records))
    np.testing.assert_array_equal(source.train.fields["image"][order], everything(source)[order])
    assert (source.held_out is not None) == (label_bytes == 1)
    assert b"".join(blocks_of(source.train.fields["image"], "")) == everything(source).tobytes()


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_folder_has_a_class_per_folder(channels: int, tmp_path: Path) -> None:
    images, labels = noise(6, (channels, 5, 4))
    path = write_folder(tmp_path / "x", images, labels, ["ant", "bee", "cat", "dog"])
    train = open_source(path).train
    order = np.argsort(labels, kind="stable")
    np.testing.assert_array_equal(everything(open_source(path)), images[order])
    np.testing.assert_array_equal(labels_of(train.fields), labels[order])
    assert (train.class_names, train.classes) == (("ant", "bee", "cat", "dog"), 4)


def test_folders_that_are_numbers_are_those_classes(tmp_path: Path) -> None:
    images, labels = noise(4, classes=2)
    train = open_source(write_folder(tmp_path / "x", images, labels, ["3", "7"])).train
    assert set(labels_of(train.fields)) == {3, 7}
    assert (train.class_names, train.classes) == ((), 8)


def test_a_test_part_is_held_out(tmp_path: Path) -> None:
    images, labels = noise()
    write_idx(tmp_path, images[:, 0], labels)
    write_idx(tmp_path, images[:2, 0], labels[:2], "t10k")
    held_out = open_source(tmp_path).held_out
    assert held_out is not None
    assert len(held_out) == 2
    for part, count in (("train", 6), ("test", 3)):
        write_folder(tmp_path / "split" / part, images[:count], labels[:count], ["a", "b", "c"])
    source = open_source(tmp_path / "split")
    assert source.held_out is not None
    assert (len(source.train), len(source.held_out)) == (6, 3)


def test_the_channel_may_be_the_last_axis(tmp_path: Path) -> None:
    images, labels = noise()
    np.savez(tmp_path / "x.npz", x_train=images.transpose(0, 2, 3, 1), y_train=labels[:, None])
    np.testing.assert_array_equal(everything(open_source(tmp_path / "x.npz")), images)


IMAGES, LABELS = noise(6, (1, 5, 4))
# The arrays of an npz file that are wrong in one way.
WRONG: dict[str, dict[str, Array]] = {
    "lengths": {"images": IMAGES, "labels": LABELS[:-1]},
    "negative": {"images": IMAGES, "labels": LABELS - 1},
    "huge": {"images": IMAGES, "labels": LABELS + 10**9},
    "fractions": {"images": IMAGES, "labels": LABELS / 2},
    "fields": {"tokens": IMAGES[:5], "y": LABELS},
    "scalar": {"tokens": np.int64(3)},
    "field name": {"a b": LABELS},
    "dtype": {"images": IMAGES.astype(np.float64), "labels": LABELS},
    "empty": {"images": IMAGES[:0], "labels": LABELS[:0]},
    "objects": {"images": IMAGES, "labels": np.array([{}] * 6)},
    "cut npz": {"images": IMAGES, "labels": LABELS},
}


def spoil(kind: str, folder: Path) -> Path:
    """Make files that are wrong in one way; return the path to open."""
    if kind in WRONG:
        path = folder / "x.npz"
        np.savez(path, **WRONG[kind])  # type: ignore[arg-type]
        if kind == "cut npz":
            path.write_bytes(path.read_bytes()[:200])
        return path
    if "idx" in kind or "gz" in kind or "labels" in kind:
        return spoil_idx(kind, folder)
    if kind == "cut safetensors":
        save_file({"images": IMAGES, "labels": LABELS}, folder / "x.safetensors")
        content = (folder / "x.safetensors").read_bytes()[:-1]
    else:
        content = b"hello, world, this is text"
    name = {"no image": "set/a/x.png", "empty folders": "set/a/x.txt", "cifar": "data_batch_1.bin"}.get(kind)
    file = folder / (name or f"x.{kind.split()[-1]}")
    file.parent.mkdir(parents=True, exist_ok=True)
    if kind != "nothing":
        file.write_bytes(content)
    return folder if kind == "cifar" else folder / "set" if name else file


def spoil_idx(kind: str, folder: Path) -> Path:
    file = write_idx(folder, IMAGES[:, 0], LABELS) / "train-images-idx3-ubyte"
    if kind == "cut idx":
        file.write_bytes(file.read_bytes()[:-1])
    elif kind == "cut gz":
        file.write_bytes(gzip.compress(file.read_bytes())[:-20])
    else:
        (folder / "train-labels-idx1-ubyte").unlink()
    return folder


def test_what_is_wrong_is_named(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for kind, message in [
        ("lengths", "do not fit 6 images"),
        ("negative", "label -1 is out of range"),
        ("huge", "is out of range; class numbers go from 0 to 65535"),
        ("fractions", "labels are float64, not whole numbers"),
        ("fields", "y has 6 records, tokens has 5; give all fields one length"),
        ("scalar", r"tokens is int64 of shape \(\); give \(records, ...\) numbers"),
        ("field name", "'a b' is no name of a field"),
        ("dtype", "images are float64, not uint8 or float32"),
        ("empty", "is no set of images"),
        ("objects", "holds Python objects, which are never read"),
        ("cut npz", "is no readable npz file"),
        ("cut idx", "its header promises 136; fetch it again"),
        ("cut gz", "cannot be unpacked"),
        ("no labels", "its labels .* are not beside it"),
        ("cut safetensors", "does not fit into the file"),
        ("no safetensors", "is no safetensors file"),
        ("empty folders", "its folders hold no images"),
        ("no image", "is no readable image"),
        ("cifar", "not a multiple of 3073"),
        ("nothing", "is not there; give the path of a folder with one folder of images per class"),
        ("txt", "is of no known format"),
    ]:
        (own := tmp_path / f"{kind}, spoilt").mkdir()
        with subtests.test(kind=kind, message=message), pytest.raises(DataError, match=message):
            open_source(spoil(kind, own))


def test_an_idx_file_without_extent_is_named(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for packed in [False, True]:
        for shape in [(0, 4, 4), (6, 0, 4), (6, 4, 0), (0, 0, 0), (0xFFFFFFFF, 0xFFFFFFFF, 0)]:
            with subtests.test(shape=shape, packed=packed):
                content = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
                file = write_idx(tmp_path, IMAGES[:, 0], LABELS) / "train-images-idx3-ubyte"
                file.write_bytes(gzip.compress(content) if packed else content)
                with pytest.raises(DataError, match="holds nothing, its shape is"):
                    open_source(tmp_path)


def test_an_image_of_another_shape_is_named(tmp_path: Path) -> None:
    images, labels = noise(4)
    path = write_folder(tmp_path / "x", images, labels, ["a", "b", "c"])
    odd = path / "c" / "zzz.png"
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(odd)
    with pytest.raises(DataError, match=r"zzz\.png: is 3x9x9, the first image of the folder 3x5x4"):
        open_holding(path)
    with pytest.raises(DataError, match=r"zzz\.png: is 3x9x9"):
        everything(open_source(path))


def test_a_value_that_is_no_number_is_named(tmp_path: Path) -> None:
    images, labels = noise()
    spoilt = images.astype(np.float32)
    spoilt[4, 0, 0, 0] = np.nan
    np.savez(tmp_path / "x.npz", images=spoilt, labels=labels)
    with pytest.raises(DataError, match="record 4 holds NaN"):
        open_holding(tmp_path / "x.npz")


def test_without_pillow_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = noise()
    path = write_folder(tmp_path / "x", images, labels, ["a", "b", "c"])
    really = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name == "PIL":
            raise ModuleNotFoundError("No module named 'PIL'", name="PIL")
        return really(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DataError, match="decoded by Pillow, which is not installed here; install pillow, or give IDX"):
        open_source(path)


def write_npz(path: Path, members: dict[str, bytes], packing: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", packing) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def npy(shape: tuple[int, ...], dtype: str, content: bytes) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue() + content


NPY_LABELS = npy((2,), "|u1", b"\0\1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("images", "message"),
    [
        pytest.param(npy((2, 1, 2, 2), "|u1", bytes(200 << 20)), "does not hold the 8 bytes", id="more than promised"),
        pytest.param(npy((2, 1, 10_000, 10_000), "|u1", bytes(200 << 20)), "would be unpacked", id="bomb that says so"),
        pytest.param(b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + bytes(200 << 20), "a header of", id="header as a bomb"),
        pytest.param(npy((-2, -1, 2, 2), "|u1", bytes(8)), "plain numbers", id="negative shape"),
        pytest.param(npy((2, 1, 2, 2), "|V1", bytes(8)), "plain numbers", id="no numbers"),
    ],
)
def test_an_npz_file_is_no_bomb(images: bytes, message: str, tmp_path: Path) -> None:
    path = write_npz(tmp_path / "x.npz", {"images": images, "labels": NPY_LABELS})
    del images
    refuse_in_little_memory(path, message)


def refuse_in_little_memory(path: Path, message: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=message):
            open_source(path).train.fields["image"][np.arange(1)]
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("packing", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_an_npz_file_is_packed_as_numpy_does(packing: int, tmp_path: Path) -> None:
    members = {"images": npy((2, 1, 2, 2), "|u1", bytes(8)), "labels": NPY_LABELS}
    with pytest.raises(DataError, match="packed as numpy never does"):
        open_source(write_npz(tmp_path / "x.npz", members, packing))


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "message"), [((2, 2, 2), "does not hold the 8"), ((2, 10_000, 10_000), "unpacked")])
def test_a_packed_idx_file_is_no_bomb(shape: tuple[int, ...], message: str, tmp_path: Path) -> None:
    content = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + bytes(100 << 20)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(content, 1))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(np.zeros(2, np.uint8))))
    del content
    refuse_in_little_memory(tmp_path, message)


def test_a_safetensors_file_with_endless_axes_is_refused_at_once(tmp_path: Path) -> None:
    header = json.dumps({"images": {"dtype": "U8", "shape": [2**62] * 40_000, "data_offsets": [0, 1]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0")
    began = time.thread_time()
    with pytest.raises(DataError, match="shape that no records"):
        open_source(tmp_path / "x.safetensors")
    assert time.thread_time() - began < 1


class TestImages:
    @pytest.mark.slow
    def test_one_of_too_many_pixels_is_not_decoded(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        Image.new("L", (9000, 9000)).save(tmp_path / "a/0.png")
        refuse_in_little_memory(tmp_path, "pixels, more than")

    def test_a_later_one_of_another_size_is_not_decoded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "a").mkdir()
        Image.new("L", (4, 4)).save(tmp_path / "a/0.png")
        Image.new("L", (3000, 3000)).save(tmp_path / "a/1.png")
        images = open_source(tmp_path).train.fields["image"]
        monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("decoded"))
        with pytest.raises(DataError, match="give all images one size"):
            images[np.array([1])]

    def test_postscript_by_another_name_starts_no_interpreter(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "a/0.png").write_bytes(
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
        )
        with pytest.raises(DataError, match="no readable image"):
            open_source(tmp_path)


def fields_of(folder: Path, **arrays: Array) -> dict[str, Array]:
    np.savez(folder / "x.npz", **arrays)
    return {name: np.asarray(column) for name, column in open_source(folder / "x.npz").train.fields.items()}


def test_records_of_any_form_are_fields(tmp_path: Path) -> None:
    tokens, target = np.arange(12).reshape(4, 3).astype(np.uint16), np.zeros((4, 5, 5), np.float32)
    found = fields_of(tmp_path, train_tokens=tokens, target=target, test_tokens=tokens[:2], target_test=target[:2])
    assert {name: (column.dtype.str, column.shape) for name, column in found.items()} == {
        "tokens": ("<i4", (4, 3)),
        "target": ("<f4", (4, 5, 5)),
    }
    held_out = open_source(tmp_path / "x.npz").held_out
    assert held_out is not None
    assert (len(held_out), list(held_out.fields)) == (2, ["tokens", "target"])
    assert fields_of(tmp_path, x=tokens.astype(">f8"), y=np.ones((4, 1), np.int64))["x"].dtype.str == "<f8"
    labels = fields_of(tmp_path, x=tokens, y=np.ones((4, 1), np.int64))["y"]
    assert (labels.dtype, labels.shape) == (np.int64, (4,))
    assert fields_of(tmp_path, image=target, label=np.ones((4, 5, 5), np.int64))["label"].shape == (4, 5, 5)


def test_beside_labelled_images_no_other_array_is_read(tmp_path: Path) -> None:
    images, labels = noise(6)
    found = fields_of(tmp_path, images=images, labels=labels, names=np.array(["a", "b"]), version=np.int64(3))
    assert list(found) == ["image", "label"]


def test_one_field_under_two_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is the field x, and there is another of that name; leave one out"):
        fields_of(tmp_path, x=LABELS, x_train=LABELS)


def test_lengths_of_ragged_records_fit_to_their_field(tmp_path: Path) -> None:
    tokens, lengths = np.ones((3, 4), np.int64), np.array([0, 2, 4])
    found = fields_of(tmp_path, **{"tokens": tokens, "tokens.length": lengths.astype(np.uint8)})["tokens.length"]
    assert (found.dtype, found.tolist()) == (np.int64, [0, 2, 4])
    for name, wrong in (
        ("tokens", lengths + 1),
        ("tokens", lengths - 1),
        ("tokens", lengths / 1.0),
        ("tokens", lengths[:, None]),
        ("token", lengths),
    ):
        with pytest.raises(
            DataError, match=rf"x\.npz: {name}\.length is .*; give \(records,\) whole numbers from 0 to"
        ):
            fields_of(tmp_path, **{"tokens": tokens, f"{name}.length": wrong})
    with pytest.raises(DataError, match=r"x\.length is .*, x of shape \[3\]"):
        fields_of(tmp_path, **{"x": lengths / 2, "x.length": lengths})
