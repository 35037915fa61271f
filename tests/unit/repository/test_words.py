"""Words that were retired (retired_words.toml) stay retired; docs/glossary.md has those that are used."""

import ast
import re
import tomllib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from tests import ROOT

PACKAGES = ("firmware_agent", "csd_emu", "host", "csd_lab")
RETIRED = tomllib.loads(Path(__file__).with_name("retired_words.toml").read_text(encoding="utf-8"))

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COMMENT = re.compile(r"(?m)(?:^|\s)#(.*)$")


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def names(path: Path) -> Iterator[str]:
    """The base name of a module, or of its package."""
    yield path.parent.name if path.stem == "__init__" else path.stem


def identifiers(text: str) -> Iterator[str]:
    """Every identifier of a Python file but the modules that it imports from."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.alias(name=name, asname=alias):
                yield alias or name
            case ast.keyword(arg=str(name)):
                yield name


def prose(text: str) -> Iterator[str]:
    """Every word of a Python file's docstrings and comments, in lower case."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from words(node.value.value)
    for comment in _COMMENT.findall(text):
        yield from words(comment)


def words(text: str) -> Iterator[str]:
    yield from _WORD.findall(text.lower())


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def find(paths: list[Path], said: Callable[[Path], Iterator[str]], retired: Collection[str]) -> dict[str, list[str]]:
    """Return retired word -> the files that have it."""
    found: dict[str, list[str]] = {}
    # Most files need not be parsed. Words of prose are in lower case, identifiers as they are written.
    likely = re.compile(rf"\b(?:{'|'.join(retired)})\b", re.IGNORECASE if str(retired).islower() else 0)
    for path in paths:
        if said is not names and not likely.search(read(path)):
            continue
        for word in sorted(set(retired).intersection(said(path))):
            found.setdefault(word, []).append(str(path.relative_to(ROOT)))
    return found


def refuse(kind: str, found: dict[str, list[str]]) -> None:
    left = set(RETIRED["left"][kind])
    new = [f"{word} (now: {RETIRED[kind][word]}): {', '.join(found[word])}" for word in sorted(found.keys() - left)]
    assert not new, "retired words:\n" + "\n".join(new)
    assert not left - found.keys(), f"gone, take them from the list: {sorted(left - found.keys())}"


def test_no_module_has_a_retired_name() -> None:
    refuse("modules", find(sources(), names, RETIRED["modules"]))


def test_no_identifier_is_a_retired_word() -> None:
    refuse("identifiers", find(sources(), lambda path: identifiers(read(path)), RETIRED["identifiers"]))


def test_no_docstring_comment_or_page_has_a_retired_word() -> None:
    def said(path: Path) -> Iterator[str]:
        return prose(read(path)) if path.suffix == ".py" else words(read(path))

    refuse("prose", find([*sources(), *pages()], said, RETIRED["prose"]))


@pytest.mark.parametrize("text", ["class old: ...", "x.old = 1", "def f(old): ...", "from a import old", "f(old=1)"])
def test_an_identifier_is_seen_wherever_it_stands(text: str) -> None:
    assert "old" in set(identifiers(text))


@pytest.mark.parametrize("text", ['"""An Old thing."""', "# the old thing\n", 'x = 1  # the "old" thing\n'])
def test_a_word_is_seen_in_docstrings_and_comments(text: str) -> None:
    assert "old" in set(prose(text))


def test_parts_of_words_and_texts_are_not_meant() -> None:
    assert "old" not in set(identifiers("bold.older = 'old'"))
    assert "old" not in set(prose('"""A bold thing."""\nx = "old"\n'))
