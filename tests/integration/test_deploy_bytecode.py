"""Compiling what is installed on drives, with a real interpreter."""

import sys
from pathlib import Path

from csd_emu.image.image_rootfs import BuildPython
from csd_emu.image.runner import Runner
from host.deploy.bundle.bundle import compile_sources


def python() -> BuildPython:
    """Return the Python that runs this test."""
    return BuildPython((sys.executable, "-I"))


def test_bytecode_does_not_depend_on_what_else_is_compiled(tmp_path: Path) -> None:
    sources = {"a.py": "x = {'one', 'two', 'three'}\nname = 'shared'\n", "b.py": "def f(shared): return shared\n"}
    made = []
    for place, names in (("one", ["a.py", "b.py"]), ("two", ["b.py", "a.py"]), ("three", ["a.py"])):
        (tree := tmp_path / place).mkdir()
        for name, text in sources.items():
            (tree / name).write_text(text)
        compile_sources(Runner(), python(), tree, [Path(name) for name in names])
        made.append(next((tree / "__pycache__").glob("a.*.pyc")).read_bytes())
    assert made[0] == made[1] == made[2]


def test_a_source_for_another_python_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text("print 'hello'\n")
    compile_sources(Runner(), python(), tmp_path, [Path("old.py")])
    assert [path.name for path in tmp_path.iterdir()] == ["old.py"]
