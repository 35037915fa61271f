"""What a job's data source may be called, and what its name becomes elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.errors import DataError
from host.core.datasets import check_source
from host.core.readers.source_names import file_of, is_code, is_path, make_absolute, make_portable

FOLDER = Path("/jobs/mine")


@pytest.mark.parametrize(
    ("source", "absolute", "portable"),
    [
        ("digits", "digits", "digits"),
        ("synthetic:3x2x2:4", "synthetic:3x2x2:4", "synthetic:3x2x2:4"),
        ("./t.csv", "/jobs/mine/t.csv", "./t.csv"),
        ("data/a:b.csv", "/jobs/mine/data/a:b.csv", "data/a:b.csv"),
        ("my_data.py:name", "/jobs/mine/my_data.py:name", "my_data.py:name"),
        ("sub/my_data.py:a.b", "/jobs/mine/sub/my_data.py:a.b", "my_data.py:a.b"),
        ("pack.age:name", "pack.age:name", "pack.age:name"),
        ("huggingface:name", "huggingface:name", "huggingface:name"),
        ("huggingface:user/name", "huggingface:user/name", "huggingface:user/name"),
        ("huggingface:./saved", "huggingface:/jobs/mine/saved", "huggingface:./saved"),
    ],
)
def test_paths_hold_from_everywhere_and_code_travels(source: str, absolute: str, portable: str) -> None:
    assert make_absolute(source, FOLDER) == absolute
    assert make_absolute(absolute, Path("/elsewhere")) == absolute
    assert make_portable(source) == portable
    assert is_path(source) == (absolute != source)
    assert is_code(source) == ("name" in source or "a.b" in source) * ("huggingface" not in source)
    assert (file_of(source) is not None) == (".py" in source)


@given(st.text(max_size=30))
def test_any_text_is_known_or_refused(source: str) -> None:
    assert make_absolute(make_absolute(source, FOLDER), FOLDER) == make_absolute(source, FOLDER)
    if source != "digits":
        with pytest.raises(DataError, match=r"data\.source"):
            check_source(source, "data.source")
