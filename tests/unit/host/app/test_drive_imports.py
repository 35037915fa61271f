"""What a file imports as it is loaded has to be on a virtual machine; what it imports elsewhere need not."""

import pytest

from csd_emu.config.array_file import ArrayConfig
from firmware_agent.common.errors import ConfigurationError
from host.app.drive_imports import check_imports


def array(engine: str) -> ArrayConfig:
    return ArrayConfig.model_validate({"name": "a", "engine": engine, "devices": [{"profile": "newport", "count": 2}]})


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
    with pytest.raises(ConfigurationError, match=r"mine.py:train: line 3 imports rich, which drives"):
        check_imports(array("qemu"), {"mine.py:train": text})
    check_imports(array("native"), {"mine.py:train": text})
