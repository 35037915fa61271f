"""Tables are read to the arrays that were written, whatever the form, and what is wrong with one is named."""

from __future__ import annotations

import csv
import gzip
import json
import os
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firmware_agent.common.datafiles import RecordSource
from firmware_agent.common.errors import DataError
from host.core.readers import table_records, text_lines
from host.core.readers.source_names import open_named

Table = dict[str, list[Any]]
Write = Callable[[Path, Table], None]


def write_csv(path: Path, table: Table) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))


def write_json_lines(path: Path, table: Table) -> None:
    rows = (dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True))
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def write_parquet(path: Path, table: Table) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(table), path, row_group_size=3)


FORMS = pytest.mark.parametrize(
    ("suffix", "write"),
    [(".csv", write_csv), (".tsv", write_csv), (".jsonl", write_json_lines), (".parquet", write_parquet)],
)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
SHARED_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def read(path: Path) -> RecordSource:
    source, code = open_named(str(path))
    assert code is None
    return source


def rows_of(*columns: st.SearchStrategy[Any], least: int = 1) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    return st.lists(st.tuples(*columns), min_size=least, max_size=12)


@FORMS
@given(rows=rows_of(FLOATS, st.integers(-(2**24), 2**24), FLOATS))
@SHARED_FOLDER
def test_numbers_beside_a_value_to_regress_on_are_one_field(
    suffix: str, write: Write, rows: list[tuple[float, int, float]], tmp_path: Path
) -> None:
    first, y, last = (list(column) for column in zip(*[(a, c, b) for a, b, c in rows], strict=True))
    write(tmp_path / f"t{suffix}", {"first": first, "y": y, "last": last})
    fields = read(tmp_path / f"t{suffix}").train.fields
    assert list(fields) == ["x", "y"]
    np.testing.assert_array_equal(fields["x"], np.array([first, last], np.float32).T)
    np.testing.assert_array_equal(fields["y"], np.array(y, np.float32)[:, None])
    assert fields["x"].dtype == fields["y"].dtype == np.float32


@FORMS
@given(rows=rows_of(FLOATS, st.integers(0, 65_535), st.booleans(), least=2))
@SHARED_FOLDER
def test_whole_numbers_are_classes_and_split_says_what_is_held_out(
    suffix: str, write: Write, rows: list[tuple[float, int, bool]], tmp_path: Path
) -> None:
    x, labels, test = (list(column) for column in zip(*rows, strict=True))
    table = {"x": x, "target": labels, "split": ["test" if each else "train" for each in test]}
    write(tmp_path / f"t{suffix}", table)
    if all(test) or len(set(labels)) == 1:
        with pytest.raises(DataError, match=r"test of all records|of two classes at least"):
            read(tmp_path / f"t{suffix}")
        return
    source, held_out = read(tmp_path / f"t{suffix}"), np.array(test)
    assert (source.held_out is None) == (not any(test))
    for part, mask in ((source.train, ~held_out), (source.held_out, held_out)):
        if part is not None:
            assert set(part.fields) == {"x", "target"}
            np.testing.assert_array_equal(part.fields["target"], np.array(labels, np.int64)[mask])
            np.testing.assert_array_equal(part.fields["x"][:, 0], np.array(x, np.float32)[mask])


@FORMS
@given(labels=st.lists(st.sampled_from(["cat", "dog, old", 'a "b"', "Größe", "two\nlines"]), min_size=2, max_size=12))
@SHARED_FOLDER
def test_text_is_a_class_by_its_sorted_name(suffix: str, write: Write, labels: list[str], tmp_path: Path) -> None:
    path = tmp_path / f"t{suffix}"
    write(path, {"a": list(range(len(labels))), "label": labels})
    if len(names := sorted(set(labels))) == 1:
        with pytest.raises(DataError, match="of two classes at least"):
            read(path)
        return
    train = read(path).train
    assert (list(train.class_names), train.classes) == (names, len(names))
    assert [names[number] for number in np.asarray(train.fields["label"])] == labels


@pytest.mark.parametrize(("suffix", "write"), [(".jsonl", write_json_lines), (".parquet", write_parquet)])
@given(
    rows=st.integers(1, 4).flatmap(
        lambda n: rows_of(
            st.lists(st.integers(-(2**63), 2**63 - 1), min_size=n, max_size=n), st.lists(FLOATS, min_size=2, max_size=2)
        )
    )
)
@SHARED_FOLDER
def test_lists_of_one_length_are_fields(
    suffix: str, write: Write, rows: list[tuple[list[int], list[float]]], tmp_path: Path
) -> None:
    tokens, boxes = (list(column) for column in zip(*rows, strict=True))
    write(tmp_path / f"t{suffix}", {"tokens": tokens, "y": boxes, "a": [1] * len(rows)})
    fields = read(tmp_path / f"t{suffix}").train.fields
    assert set(fields) == {"tokens", "y", "x"}
    for name, wanted in (("tokens", np.array(tokens, np.int64)), ("y", np.array(boxes, np.float32))):
        assert fields[name].dtype == wanted.dtype
        np.testing.assert_array_equal(fields[name], wanted)


@pytest.mark.parametrize(("suffix", "write"), [(".jsonl", write_json_lines), (".parquet", write_parquet)])
@given(
    rows=rows_of(
        st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=6), st.lists(FLOATS, min_size=1, max_size=3)
    ),
    block=st.integers(1, 9),
)
@SHARED_FOLDER
def test_lists_that_differ_in_length_are_padded_beside_their_lengths(
    suffix: str, write: Write, rows: list[tuple[list[int], list[float]]], block: int, tmp_path: Path
) -> None:
    tokens, boxes = (list(column) for column in zip(*rows, strict=True))
    write(tmp_path / f"t{suffix}", {"tokens": tokens, "y": boxes, "a": [1] * len(rows)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_records, "_BLOCK_VALUES", block)
        fields = read(tmp_path / f"t{suffix}").train.fields
    for name, lists in (("tokens", tokens), ("y", boxes)):
        lengths = [len(each) for each in lists]
        assert ((name + ".length") in fields) == (len(set(lengths)) > 1)
        assert fields[name].shape == (len(rows), max(lengths))
        for record, wanted in zip(np.asarray(fields[name]), lists, strict=True):
            np.testing.assert_array_equal(record[: len(wanted)], np.array(wanted, record.dtype))
            assert not record[len(wanted) :].any()
        if len(set(lengths)) > 1:
            np.testing.assert_array_equal(fields[name + ".length"], lengths)


def test_what_is_held_out_is_padded_to_the_same_length(tmp_path: Path) -> None:
    table = {"t": [[1], [1, 2, 3]], "y": [0.5, 1.0], "split": ["test", "train"]}
    write_json_lines(tmp_path / "t.jsonl", table)
    source = read(tmp_path / "t.jsonl")
    assert source.held_out is not None
    for part, lengths in ((source.train, [3]), (source.held_out, [1])):
        assert part.fields["t"].shape == (1, 3)
        assert np.asarray(part.fields["t.length"]).tolist() == lengths


def test_one_long_record_among_many_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json_lines(tmp_path / "t.jsonl", {"t": [[1]] * 99 + [[1] * 100]})
    monkeypatch.setattr(table_records, "MOST_BYTES", 100 * 100 * 8)
    assert read(tmp_path / "t.jsonl").train.fields["t"].shape == (100, 100)
    monkeypatch.setattr(table_records, "MOST_BYTES", 100 * 100 * 8 - 1)
    with pytest.raises(DataError, match=r"t\.jsonl: field t: records of 1 to 100 values take over 0 GiB .* cut the"):
        read(tmp_path / "t.jsonl")


@FORMS
def test_blocks_are_put_together(suffix: str, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_records, "_BLOCK_VALUES", 9)
    labels = ["b" if number % 3 else "a" for number in range(10)]
    write(tmp_path / f"t{suffix}", {"a": list(range(10)), "b": [0.5] * 10, "label": labels})
    fields = read(tmp_path / f"t{suffix}").train.fields
    np.testing.assert_array_equal(fields["x"], [[number, 0.5] for number in range(10)])
    np.testing.assert_array_equal(fields["label"], [int(number % 3 > 0) for number in range(10)])


@FORMS
@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"a": [1.5, float("nan")], "y": [0, 1]},
            r"(line 3|record 1), column 'a': is nan; correct it|line 2 is no JSON object",
        ),
        ({"a": [1.5, 1e39], "y": [0, 1]}, "column 'a': is 1e.39 and no number that float32 holds"),
        ({"a": ["red", "blue"], "y": [0, 1]}, r"column 'a': is text \('red'\); make it a number"),
        ({"a": [1, None], "y": [0, 1]}, r"(line [23]|record 1), column 'a': is empty; fill it in"),
        ({"a": [1, 2], "y": ["x", None]}, r"(line [23]|record 1), column 'y': is empty; fill it in"),
        ({"a": [1, 2], "y": [-3, 1]}, "column 'y' goes from -3 to 1; class numbers are 0 to 65535"),
        ({"a": [1, 2], "y": [4, 65_536]}, "goes from 4 to 65536; .* values to regress on have a decimal point"),
        ({"a": [1, 2], "y": [1, 1]}, "of two classes at least"),
        ({"a": [1, 2], "y": [1, 2], "label": [1, 2]}, "both label and y are called as a target"),
        ({"y": [1, 2]}, "one beside the target at least"),
        ({" ": [1, 2], "y": [1, 2]}, "column 1 has no name of its own"),
        ({"__index_level_0__": [1, 2], "y": [1, 2]}, "pandas writes its index so"),
        ({"a": [1, 2], "split": ["train", "val"]}, "column 'split': is neither train nor test; correct it"),
        ({"a": [1, 2], "split": ["test", "test"]}, "says test of all records; call some train"),
        ({"a": []}, "holds no records|Parquet"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(
    table: Table, message: str, suffix: str, write: Write, tmp_path: Path
) -> None:
    write(path := tmp_path / f"t{suffix}", table)
    with pytest.raises(DataError, match=message) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "", "holds no records"),
        ("a.csv", "a,y\n1,2,3\n", "line 2 has 3 cells, the header 2"),
        ("a.csv", "a,y,a\n1,2,3\n", "two columns are called 'a'"),
        ("a.csv", 'a,y\n"1,2\n', "is no CSV"),
        ("a.csv", "a,y\n" + "1" * 200_000 + ",2\n", "is no CSV .field larger than field limit"),
        ("a.csv", "ä,y\n1,2\n".encode("latin-1"), "line 1 is no text in UTF-8"),
        ("a.jsonl", '{"a": 1}\n{"b": 1}\n', "line 2 has no 'a'; give all records the same"),
        ("a.jsonl", '{"a": 1}\n{"a": 1, "b": 1}\n', "line 2 has 'b', and the first has not"),
        ("a.jsonl", '{"a": 1}\n\n[1]\n', "line 3 is no JSON object"),
        ("a.jsonl", '{"a": 1}\n{"a": 1', "line 2 is no JSON object .*truncated"),
        ("a.jsonl", "[" * 10_000, "line 1 is no JSON object"),
        ("a.jsonl", '{"t": [1, 2]}\n{"t": 1}\n', "line 2, column 't': is of another form than others"),
        ("a.jsonl", '{"t": 1}\n{"t": [1]}\n', "line 1, column 't': is of another form than others"),
        ("a.jsonl", '{"t": [1, null]}\n', "line 1, column 't': is a list that is empty, or not of finite"),
        ("a.jsonl", '{"t": [1, 1e300]}\n', "line 1, column 't': is a list that is empty, or not of finite"),
        ("a.jsonl", '{"t": [18446744073709551615]}\n', "line 1, column 't': is a list that is empty, or not of"),
        ("a.jsonl", '{"t t": [1]}\n', "call those of lists by letters"),
        ("a.jsonl", '{"x": [1], "b": 1}\n', "none x beside plain numbers"),
        ("a.jsonl", '{"a": {"b": 1}}\n', "column 'a': is {'b': 1} and no number"),
        ("a.jsonl", '{"a": ' + "1" * 400 + "}\n", "column 'a': is a int of many digits and no number"),
        ("a.jsonl", "{}\n{}\n", "holds no records"),
        ("a.parquet", "PAR1", "is no readable Parquet file"),
        ("a.csv.gz", "a,y", "cannot be unpacked"),
    ],
)
def test_a_damaged_file_is_named(name: str, text: str | bytes, message: str, tmp_path: Path) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))


def test_packed_tables_are_read_and_those_cut_short_are_not(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    content = gzip.compress("".join(["a,y\n", *(f"{n / 7},{n % 2}\n" for n in range(200))]).encode())
    path.write_bytes(content)
    assert len(read(path).train) == 200
    for cut in (len(content) - 1, len(content) // 2, 3):
        path.write_bytes(content[:cut])
        with pytest.raises(DataError, match="cannot be unpacked"):
            read(path)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress((b" " * (12 << 20) + b"\n") * 3))
    with pytest.raises(DataError, match="would be unpacked to"):
        read(path)


def test_parquet_cut_short_and_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(path := tmp_path / "a.parquet", {"a": [1.5] * 20, "y": [0, 1] * 10})
    content = path.read_bytes()
    for cut in (len(content) - 9, 20, 0):
        path.write_bytes(content[:cut])
        with pytest.raises(DataError, match="is no readable Parquet file"):
            read(path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pip install 'csd-emu\[parquet\]'"):
        read(path)


def test_no_more_of_a_line_is_read_than_it_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_lines, "MOST_LINE_BYTES", 1 << 16)
    (path := tmp_path / "a.csv").touch()
    os.truncate(path, 64 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="line 1 has over 0 MiB"):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_lines_and_tables_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_lines, "MOST_LINE_BYTES", 1 << 20)
    (path := tmp_path / "a.jsonl").write_bytes(b'{"a": "' + b"x" * (1 << 20) + b'"}')
    with pytest.raises(DataError, match="line 1 has over 1 MiB"):
        read(path)
    path.write_text('{"a": 1}\n' * 10)
    monkeypatch.setattr(table_records, "MOST_BYTES", 39)
    with pytest.raises(DataError, match="take more than 0 GiB in memory"):
        read(path)


ODD = st.sampled_from(
    ['"', ",", "\n", "\r", "\0", "{", "}", "[", "]", ":", "a", "y", "1", "-", ".", "e", "nan", "split"]
)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.csv.gz", "a.parquet"])
@given(
    content=st.one_of(st.binary(max_size=200), st.lists(ODD, max_size=40).map(lambda parts: "".join(parts).encode()))
)
@SHARED_FOLDER
def test_whatever_lies_in_a_file_is_read_or_refused(name: str, content: bytes, tmp_path: Path) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
        content = b"PAR1" + content + b"PAR1"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    told = ""
    try:
        assert len(read(tmp_path / name).train) > 0
    except DataError as error:
        told = str(error)
    assert not told or told.startswith(str(tmp_path / name))
