"""YAML from elsewhere: plain values alone, and bounded in size, depth and number, also after aliases are followed."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import yaml

from firmware_agent.common.atomic_files import read_file
from firmware_agent.common.errors import ConfigurationError

# Of a file: its text, and its values and keys, each alias counting as often as what it stands for. As many as this are
# 3,000 drives of an inventory, one by one, and take a third of a second at most.
MOST_BYTES, MOST_VALUES = 1 << 20, 30_000
MOST_DEPTH = 32
# Of one value, and of its tag or anchor; and of directives, for which libyaml takes the square of their number.
MOST_CHARACTERS, _MOST_NAME, _MOST_DIRECTIVES = 1 << 16, 256, 16
_DIRECTIVE = re.compile("(?:^|[\ufeff\r\n\x85\u2028\u2029])%")
# Of an error message, of which both ends are shown.
_MOST_TOLD = 1000
# Longer ones are no numbers that anyone means, and take time that grows with the square of their length.
_MOST_DIGITS = 400
# What PyYAML raises beside its own errors, such as of an impossible date, or of a tag that its value does not fit.
_UNREADABLE = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, OverflowError, RecursionError)
# libyaml's takes a tenth of the time.
_Safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_yaml(path: Path, *, special: bool = False) -> Any:
    """Return the values in the YAML file at `path`; `special` as in `read_file`.

    Raises:
        ConfigurationError: it cannot be read, is no YAML, or breaks a bound.
    """
    try:
        text = read_file(path, MOST_BYTES, special=special).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{path}: cannot be read ({getattr(error, 'strerror', 'no text in UTF-8')}); give the path of a YAML file"
        ) from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, where: str) -> Any:
    """Return the values in `text`; `where` names its origin in errors (see `load_yaml`)."""
    try:
        if len(text) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} characters")
        if len(_DIRECTIVE.findall(text)) > _MOST_DIRECTIVES:
            raise ValueError(f"it has more than {_MOST_DIRECTIVES} lines that begin with %; remove them")
        bounds = _Bounds()
        for event in yaml.parse(text, Loader=_Safe):  # counted before anything is built
            bounds.count(event)
        return yaml.load(text, Loader=_Loader)
    except _UNREADABLE as error:
        if len(told := str(error)) > _MOST_TOLD:
            told = f"{told[: _MOST_TOLD // 2]} ... {told[-_MOST_TOLD // 2 :]}"
        raise ConfigurationError(f"{where}: is no valid YAML: {told}") from error


def load_nodes(path: Path) -> tuple[Any, yaml.Node | None]:
    """Return the values in the YAML file at `path`, and its nodes, for `find_mark` (see `load_yaml`)."""
    return load_yaml(path), yaml.compose(read_file(path, MOST_BYTES), Loader=_Safe)


def find_mark(node: yaml.Node | None, keys: Sequence[int | str]) -> str:
    """Return where a key stands in a file, such as ``line 7, column 3``; empty if it is not there.

    Args:
        node: the file's (see `load_nodes`).
        keys: those on the way to it, with the number of an entry of a list; a list's entry, too, may be the last.
    """
    mark = None
    for key in keys:
        if isinstance(node, yaml.SequenceNode):
            entries = {str(number): (each.start_mark, each) for number, each in enumerate(node.value)}
        elif isinstance(node, yaml.MappingNode):
            entries = {str(name.value): (name.start_mark, each) for name, each in node.value}
        else:
            entries = {}
        mark, node = entries.get(str(key), (None, None))
    return "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}"


class _Bounds:
    """Counts nodes and depth, event after event."""

    def __init__(self) -> None:
        self._nodes = 0
        self._sizes: dict[str, int] = {}
        # Of each collection that is open: its anchor, and the number of nodes when it began.
        self._opened: list[tuple[str | None, int]] = []

    def count(self, event: yaml.Event) -> None:
        """Take one event; a `yaml.YAMLError` that names the line if it breaks a bound."""
        if isinstance(event, yaml.ScalarEvent):
            if len(event.value) > MOST_CHARACTERS:
                raise _wrong(f"a value has more than {MOST_CHARACTERS} characters; shorten it", event)
            self._close(event.anchor, self._nodes)
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in self._opened):
                raise _wrong(f"the alias *{event.anchor} stands for what it is in; write it out", event)
            self._nodes += self._sizes.get(str(event.anchor), 1)
        elif isinstance(event, yaml.CollectionStartEvent):
            self._opened.append((event.anchor, self._nodes))
        elif isinstance(event, yaml.CollectionEndEvent):
            self._close(*self._opened.pop())
        if (
            len(getattr(event, "tag", None) or "") > _MOST_NAME
            or len(getattr(event, "anchor", None) or "") > _MOST_NAME
        ):
            raise _wrong(f"a tag or anchor has more than {_MOST_NAME} characters; shorten it", event)
        if len(self._opened) > MOST_DEPTH:
            raise _wrong(f"it is nested more than {MOST_DEPTH} deep; write it flatter", event)
        if self._nodes > MOST_VALUES:
            raise _wrong(f"it has more than {MOST_VALUES} values, with those that aliases stand for; split it", event)

    def _close(self, anchor: str | None, before: int) -> None:
        self._nodes += 1
        if anchor is not None:
            self._sizes[anchor] = self._nodes - before


def _wrong(told: str, event: yaml.Event) -> yaml.MarkedYAMLError:
    mark: Any = event.start_mark  # one of libyaml's own
    return yaml.MarkedYAMLError(problem=told, problem_mark=mark)


class _Loader(_Safe):  # type: ignore[misc]
    """YAML, safe, in which a repeated key is an error rather than a silent replacement."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Construct a mapping; a repeated key raises."""
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key := self.construct_object(key_node, deep=True), Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a plain value", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} occurs twice", node.start_mark)
            seen.add(key)
        return dict(super().construct_mapping(node, deep=deep))

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        """Construct a number of a length that somebody may have meant."""
        if len(node.value) > _MOST_DIGITS:
            raise yaml.constructor.ConstructorError(None, None, "a number is too long", node.start_mark)
        return _Safe.yaml_constructors[node.tag](self, node)


# No key takes a date; what looks like one is text.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
for number in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
    _Loader.add_constructor(number, _Loader.construct_number)
