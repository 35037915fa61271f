import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.image.image_rootfs import BuildPython, compile_tree, deal, find_python
from csd_emu.image.runner import Runner
from firmware_agent.common.errors import ImageError

THIS = BuildPython((sys.executable, "-I"))


def test_bytecode_names_the_guests_path_and_is_never_compared_with_its_source(tmp_path: Path) -> None:
    source = tmp_path / "opt" / "a.py"
    source.parent.mkdir()
    source.write_text("def f():\n    pass\n")
    compile_tree(Runner(), THIS, tmp_path, ["opt"], strict=True)
    data = Path(importlib.util.cache_from_source(str(source))).read_bytes()
    assert b"/opt/a.py" in data
    assert str(tmp_path).encode() not in data
    # PEP 552: bit 0 says hash-based, bit 1 says that the source is to be checked.
    assert int.from_bytes(data[4:8], "little") == 0b01


def test_a_source_that_does_not_compile_counts_only_where_it_matters(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "two.py").write_text("print 'python 2'\n")
    compile_tree(Runner(), THIS, tmp_path, ["old"], strict=False)
    with pytest.raises(ImageError, match=r"two\.py.*correct the source"):
        compile_tree(Runner(), THIS, tmp_path, ["old"], strict=True)


def test_nothing_to_compile_is_no_error(tmp_path: Path) -> None:
    compile_tree(Runner(), THIS, tmp_path, ["missing"], strict=True)


@given(sizes=st.lists(st.integers(0, 200), max_size=20), shares=st.integers(1, 4))
def test_files_are_dealt_once_and_evenly(
    sizes: list[int], shares: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("sources")
    paths = [folder / f"{index}.py" for index in range(len(sizes))]
    for path, size in zip(paths, sizes, strict=True):
        path.write_bytes(b"#" * size)
    dealt = deal(paths, shares)
    assert sorted(path for share in dealt for path in share) == sorted(paths)
    totals = [sum(path.stat().st_size for path in share) for share in dealt]
    assert max(totals) - min(totals) <= max(sizes, default=0)


def test_the_running_python_is_used_when_it_has_the_version() -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = find_python(version)
    assert found is not None
    assert found.command[0] == sys.executable
    assert find_python("2.99") is None


def test_a_stand_in_that_only_says_what_to_choose_is_no_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = tmp_path / "python2.98"
    stand_in.write_text("#!/bin/sh\necho choose one >&2\nexit 127\n")
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert find_python("2.98") is None


def test_links_that_lead_out_of_a_tree_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/own.py").write_text("x = 1\n")
    (tmp_path / "lib/led_away.py").symlink_to("/etc/nowhere/led_away.py")
    compile_tree(Runner(), THIS, tmp_path, ["lib"], strict=True)
    assert [path.name.partition(".")[0] for path in (tmp_path / "lib/__pycache__").iterdir()] == ["own"]
