"""What a file imports has to be on a virtual machine, unless it has a way out or no drive comes there."""

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from csd_emu.config.array_file import ArrayConfig
from firmware_agent.common.errors import ConfigurationError
from host.app import drive_imports
from host.app.drive_imports import check_imports


def array(engine: str, *packages: str, **more: Any) -> ArrayConfig:
    groups = [{"profile": "newport", "count": 2}]
    content = {"name": "a", "engine": engine, "devices": groups, "image": {"packages": list(packages)}}
    return ArrayConfig.model_validate(content | more)


@pytest.mark.parametrize(
    "text",
    [
        "import math\nimport torch, numpy as np\nfrom torch import nn\nfrom msgspec import json\n",
        "try:\n    import rich\nexcept ImportError:\n    rich = None\n",
        "from contextlib import suppress\nwith suppress(ImportError):\n    import rich\n",
        "def build():\n    try:\n        import rich\n    except (KeyError, ModuleNotFoundError):\n        pass\n",
        "try:\n    import rich\nexcept:\n    pass\n",
        "import typing\nif typing.TYPE_CHECKING:\n    import rich\n",
        "import typing as t\nif t.TYPE_CHECKING:\n    import rich\n",
        "if __name__ == '__main__':\n    import rich\n",
        "import firmware_agent\n",
        "import not_installed_anywhere\n",  # said by the trial on the host
        "this is no Python",
        'import rich\n# csd-emu: what it imports from beside it, as JSON: {"rich": ""}\n',
    ],
)
def test_what_is_there_or_need_not_be_is_let_through(text: str) -> None:
    check_imports(array("qemu"), {"mine.py:train": text, "digits_cnn": None})


def test_what_a_machine_lacks_is_named_and_elsewhere_it_may_be() -> None:
    text = "import torch\n\ndef train(model):\n    from rich.table import Table\n"
    words = r"mine.py:train: line 4 imports rich, which drives .* add image: \{packages: \[rich\]\} to the array file"
    for config in (array("qemu"), array("qemu", clock="sampled")):
        with pytest.raises(ConfigurationError, match=words):
            check_imports(config, {"mine.py:train": text})
    check_imports(array("native"), {"mine.py:train": text})
    with pytest.raises(ConfigurationError, match=r"line 1 imports csd_emu, .*; keep what drives run in another file"):
        check_imports(array("qemu"), {"mine.py:train": "from csd_emu.extend import strategy\n"})


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("try:\n    1 / 0\nexcept ValueError:\n    import rich\n", "line 4"),
        ("try:\n    import numpy\nexcept ImportError:\n    pass\nfinally:\n    import rich\n", "line 6"),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    import rich\n", "line 4"),
        ("class Net:\n    def forward(self):\n        with open('x'):\n            import rich\n", "line 4"),
        ("x = " + "+".join("x" * 900) + "\nimport rich\n", "line 2"),
        ('import h\n# csd-emu: what it imports from beside it, as JSON: {"h": "\\nimport rich"}\n', "h.py, line 2"),
    ],
)
def test_it_is_found_wherever_it_stands(text: str, place: str) -> None:
    with pytest.raises(ConfigurationError, match=f"mine.py:train: {place} imports rich, "):
        check_imports(array("qemu"), {"mine.py:train": text})


def test_so_is_a_package_that_the_job_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "visiondummy").mkdir()
    (tmp_path / "visiondummy" / "__init__.py").write_text("raise ValueError('is not imported')")
    info = tmp_path / "vision_dummy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vision-dummy\nVersion: 1.0\n")
    (info / "top_level.txt").write_text("visiondummy\n")
    monkeypatch.syspath_prepend(tmp_path)
    sources = {"digits_cnn": None, "torch.nn:Linear": None, "visiondummy.models:net": None}
    words = r"visiondummy.models:net: is of visiondummy, which drives .*add image: \{packages: \[vision-dummy\]\}"
    with pytest.raises(ConfigurationError, match=words):
        check_imports(array("qemu"), sources)
    check_imports(array("native"), sources)
    monkeypatch.setattr(drive_imports, "image_distributions", lambda *_: frozenset({"torch", "vision-dummy"}))
    check_imports(array("qemu", "vision-dummy"), sources)


def test_what_the_array_has_machines_given_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def found(packages: list[str], _: object) -> frozenset[str]:
        asked.append(packages)
        return frozenset({"torch", "markdown-it-py", "rich"})

    monkeypatch.setattr(drive_imports, "image_distributions", found)
    check_imports(array("qemu", "rich>=13"), {"mine.py:train": "import rich\nfrom markdown_it import MarkdownIt\n"})
    assert asked == [["rich>=13"]]


RICH = metadata.version("rich")


@pytest.mark.parametrize(
    "package", ["rich", "rich>=13", "rich[jupyter]", f"rich=={RICH}", f"rich=={RICH}.0", "rich==1.*"]
)
def test_native_drives_have_what_this_python_has(package: str) -> None:
    check_imports(array("native", package), {})


@pytest.mark.parametrize(
    ("package", "words"), [("rich==0.1", f"there is rich {RICH}"), ("not-there-zz>=2", "there is no not-there-zz;")]
)
def test_native_drives_without_a_package_are_refused(package: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"image.packages: {package}: .*{words}.*pip install '{package}'"):
        check_imports(array("native", package), {})
