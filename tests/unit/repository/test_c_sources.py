"""Rules of the C sources: size, licence, and a core model that knows neither QEMU nor global state."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "csd_emu/cycles"
SOURCES = sorted(FOLDER.rglob("*.[ch]"))
MOST_LINES, MOST_FUNCTION_LINES, MOST_WIDTH = 400, 50, 120
PURE_HEADERS = {"<stdbool.h>", "<stddef.h>", "<stdint.h>", "<stdlib.h>", "<string.h>", '"core.h"', '"decode.h"'}


def test_there_are_sources() -> None:
    assert {"plugin.c", "core.c", "core.h"} <= {path.name for path in SOURCES}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_files_and_functions_are_short_and_say_licence_and_subject(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "/* SPDX-License-Identifier: GPL-2.0-or-later */"
    assert lines[1].startswith("/*")
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= MOST_WIDTH
    begins = [number for number, line in enumerate(lines) if line == "{"]
    for begin in begins:
        assert lines.index("}", begin) - begin <= MOST_FUNCTION_LINES, lines[begin - 1]


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if path.parent.name == "core_model"], ids=lambda path: path.name
)
def test_the_core_model_is_pure(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert set(re.findall(r"#include (\S+)", text)) <= PURE_HEADERS
    assert not re.findall(r"^\s*static (?!const |inline )[^(\n]*[;=]", text, re.MULTILINE)
    for name in re.findall(r"^(?:extern )?(?:struct |unsigned |u?int\w* )[^(){}]*;", text, re.MULTILINE):
        pytest.fail(f"{path.name}: {name} is state of the whole process")
