"""Files of the user's that travel as one text: with what they import from beside them, and nothing else."""

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_agent.common.user_code.source_files import MAX_SOURCE_BYTES, module_from, needed_imports, read_source
from tests.support.examples import examples


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder / "mine.py"


def test_a_file_that_imports_nothing_from_beside_it_travels_as_it_is(tmp_path: Path) -> None:
    text = "import math\nimport torch\nfrom .other import x\n"
    assert read_source(written(tmp_path, mine=text, other="x = 1", math="pi = 3")) == text


def test_files_beside_it_are_found_where_it_runs_whoever_imports_them_and_when(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        mine="import helper as h\nfrom pair import other\ndef value():\n"
        "    import late\n    return h.two + other() + late.four\n",
        helper="import pair\ntwo = 2\n",
        pair="import helper\ndef other():\n    return helper.two + 1\n",
        late="four = 4\n",
        not_asked="raise ValueError",
    )
    source = read_source(path)
    for each in tmp_path.glob("*.py"):
        each.unlink()
    module = module_from("mine.py", source)
    assert module.value() == 9
    assert "helper" not in sys.modules
    path.write_text(source)  # as a run's directory keeps it
    assert read_source(path) == source
    with pytest.raises(ModuleNotFoundError, match="not_asked"):
        module_from("other.py", source.replace("import late", "import not_asked")).value()


@settings(max_examples=examples(25))
@given(st.lists(st.text(max_size=40), min_size=1, max_size=3), st.integers(0, 5))
def test_whatever_a_file_says_lines_keep_their_numbers(texts: list[str], before: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        names = [f"part_{number}" for number in range(len(texts))]
        files = {name: f"text = {text!r}" for name, text in zip(names, texts, strict=True)}
        main = "\n" * before + f"import {', '.join(names)}\nvalue = [{', '.join(f'{n}.text' for n in names)}]\n1 / 0\n"
        source = read_source(written(Path(folder), mine=main, **files))
    assert source.startswith(main)
    with pytest.raises(ZeroDivisionError) as raised:
        module_from("mine.py", source)
    last = raised.traceback[-1]
    assert last.lineno + 1 == before + 3
    assert last.frame.f_globals["value"] == texts


def test_what_travels_with_a_file_is_missed_where_it_is_imported_if_it_is_damaged(tmp_path: Path) -> None:
    source = read_source(written(tmp_path, mine="import helper\n", helper="two = 2"))
    for damaged in (source.replace('"two', "two"), source.partition(": {")[0] + ": [1]"):
        assert list(needed_imports(damaged)) == [("helper", "line 1")]
        with pytest.raises(ModuleNotFoundError, match="helper"):
            module_from("mine.py", damaged)


def test_files_that_are_too_large_together_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, mine="import helper", helper="#" * (MAX_SOURCE_BYTES - 10))
    with pytest.raises(OSError, match="with helper, which it imports"):
        read_source(path)
