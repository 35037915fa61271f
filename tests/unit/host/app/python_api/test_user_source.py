"""Source of a class or function that a script or notebook has defined."""

import linecache
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firmware_agent.common.errors import ConfigurationError
from host.app.python_api.user_source import MAIN, collect_source, name_code
from tests.support import commands


def define(monkeypatch: pytest.MonkeyPatch, text: str, file: str = "<cell 1>") -> types.ModuleType:
    """The module of a program whose text is this, as a notebook runs a cell."""
    module = types.ModuleType(MAIN)
    lines = text.splitlines(keepends=True)
    monkeypatch.setitem(linecache.cache, file, (len(text), None, lines, file))
    monkeypatch.setitem(sys.modules, MAIN, module)
    exec(compile(text, file, "exec"), module.__dict__)
    return module


NET = """
import math
from collections import OrderedDict as Ordered
WIDTH, NAMES = 7, ["a", "b"]

def scale(x):
    return x * math.sqrt(WIDTH)

class Base:
    names = NAMES

class Net(Base):
    def __init__(self, classes=10):
        self.layers = Ordered(width=scale(classes))
"""


def run(source: str) -> dict[str, Any]:
    values: dict[str, Any] = {"__name__": "shipped"}
    exec(source, values)
    return values


def test_a_class_goes_with_all_that_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    module = define(monkeypatch, NET)
    shipped = run(collect_source(module.Net))
    assert shipped["Net"](4).layers == module.Net(4).layers
    assert shipped["Net"].names == ["a", "b"]


def test_a_class_of_a_notebooks_cell_is_found_by_its_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "class Twice:\n    def build(self):\n        return 1\nclass Twice:\n    def build(self):\n        return 2\n"
    )
    module = define(monkeypatch, text)
    assert run(collect_source(module.Twice))["Twice"]().build() == 2


def test_what_cannot_be_shipped_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    module = define(monkeypatch, "import threading\nLOCK = threading.Lock()\n\ndef build():\n    return LOCK\n")
    with pytest.raises(ConfigurationError, match=r"build, line 5: 'LOCK' is a lock, which cannot be shipped"):
        collect_source(module.build)


def test_a_closure_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def outer(width):\n    def build():\n        return width\n    return build\nbuild = outer(3)\n"
    module = define(monkeypatch, text)
    with pytest.raises(ConfigurationError, match=r"build, line 3: 'width' is a variable of the function around it"):
        collect_source(module.build)


def test_what_has_a_file_is_named_by_it(tmp_path: Path) -> None:
    assert name_code(commands.Workshop, tmp_path) == "tests.support.commands:Workshop"
    assert not list(tmp_path.iterdir())


def test_what_has_none_is_written_to_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = define(monkeypatch, NET)
    path, _, name = name_code(module.Net, tmp_path).partition(":")
    assert name == "Net"
    assert run(Path(path).read_text(encoding="utf-8"))["Net"](4).layers == module.Net(4).layers


@pytest.mark.parametrize("made", [3, "digits_cnn", object()])
def test_an_instance_is_refused(made: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is no class or function"):
        name_code(made, tmp_path)


def test_a_class_of_which_no_source_is_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType(MAIN)
    monkeypatch.setitem(sys.modules, MAIN, module)
    exec("class Net:\n    def build(self): ...\n", module.__dict__)
    with pytest.raises(ConfigurationError, match="the source of Net is not known here"):
        collect_source(module.Net)
