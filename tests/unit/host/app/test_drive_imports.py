"""What a file imports as it is loaded has to be on a virtual machine; what it imports elsewhere need not."""

from importlib import metadata
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
        "def build():\n    import rich\n",
        "import not_installed_anywhere\n",  # said by the trial on the host
        "this is no Python",
        'import rich\n# csd-emu: what it imports from beside it, as JSON: {"rich": ""}\n',
    ],
)
def test_what_is_there_or_need_not_be_is_let_through(text: str) -> None:
    check_imports(array("qemu"), {"mine.py:train": text, "digits_cnn": None})


def test_what_a_machine_lacks_is_named_and_elsewhere_it_may_be() -> None:
    text = "import torch\n\nfrom rich.table import Table\n"
    words = r"mine.py:train: line 3 imports rich, which drives .* add image: \{packages: \[rich\]\} to the array file"
    for config in (array("qemu"), array("qemu", clock="sampled")):
        with pytest.raises(ConfigurationError, match=words):
            check_imports(config, {"mine.py:train": text})
    check_imports(array("native"), {"mine.py:train": text})


def test_what_the_array_has_machines_given_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def found(packages: list[str], _: object) -> frozenset[str]:
        asked.append(packages)
        return frozenset({"torch", "markdown-it-py", "rich"})

    monkeypatch.setattr(drive_imports, "image_distributions", found)
    check_imports(array("qemu", "rich>=13"), {"mine.py:train": "import rich\nfrom markdown_it import MarkdownIt\n"})
    assert asked == [["rich>=13"]]


RICH = metadata.version("rich")


@pytest.mark.parametrize("package", ["rich", "rich>=13", "rich[jupyter]", f"rich=={RICH}", "rich==1.*"])
def test_native_drives_have_what_this_python_has(package: str) -> None:
    check_imports(array("native", package), {})


@pytest.mark.parametrize(
    ("package", "words"), [("rich==0.1", f"there is rich {RICH}"), ("not-there-zz>=2", "there is no not-there-zz;")]
)
def test_native_drives_without_a_package_are_refused(package: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"image.packages: {package}: .*{words}.*pip install '{package}'"):
        check_imports(array("native", package), {})
