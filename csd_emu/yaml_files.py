"""YAML from elsewhere: plain values alone, and bounded in size, depth and number, also after aliases are followed."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from firmware_agent.errors import ConfigurationError
from firmware_agent.files import read_file

MOST_BYTES = 1 << 20
# Of values and keys, each alias counting as often as what it stands for.
MOST_NODES = 50_000
MOST_DEPTH = 32
# Longer ones are no numbers that anyone means, and take time that grows with the square of their length.
_MOST_DIGITS = 400
# What PyYAML raises beside its own errors, such as of an impossible date, or of a tag that its value does not fit.
_UNREADABLE = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, OverflowError, RecursionError)
_EVENTS: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_yaml(path: Path, *, special: bool = False) -> Any:
    """Return the values in the YAML file at `path`; `special` as in `firmware_agent.files.read_file`.

    Raises:
        ConfigurationError: it cannot be read, is no YAML, or breaks a bound.
    """
    try:
        text = read_file(path, MOST_BYTES, special=special).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read ({error}); give the path of a YAML file") from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, where: str) -> Any:
    """Return the values in `text`; `where` names its origin in errors (see `load_yaml`)."""
    try:
        if len(text) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} characters")
        _check_bounds(text)
        return yaml.load(text, Loader=_Loader)
    except _UNREADABLE as error:
        raise ConfigurationError(f"{where}: is no valid YAML: {error}") from error


def _check_bounds(text: str) -> None:
    """Count before anything is built.

    Raises:
        ValueError: it is too deep or too much, or an alias stands for what it is in.
    """
    bounds = _Bounds()
    for event in yaml.parse(text, Loader=_EVENTS):
        bounds.count(event)


class _Bounds:
    """Counts nodes and depth, event after event."""

    def __init__(self) -> None:
        self._nodes = 0
        self._sizes: dict[str, int] = {}
        # Of each collection that is open: its anchor, and the number of nodes when it began.
        self._opened: list[tuple[str | None, int]] = []

    def count(self, event: yaml.Event) -> None:
        """Take one event; `ValueError` if it breaks a bound."""
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in self._opened):
                raise ValueError(f"the alias *{event.anchor} stands for what it is in; write it out")
            self._nodes += self._sizes.get(str(event.anchor), 1)
        elif isinstance(event, yaml.ScalarEvent):
            self._close(event.anchor, self._nodes)
        elif isinstance(event, yaml.CollectionStartEvent):
            self._opened.append((event.anchor, self._nodes))
        elif isinstance(event, yaml.CollectionEndEvent):
            self._close(*self._opened.pop())
        if len(self._opened) > MOST_DEPTH:
            raise ValueError(f"it is nested more than {MOST_DEPTH} deep; write it flatter")
        if self._nodes > MOST_NODES:
            raise ValueError(f"it has more than {MOST_NODES} values, with those that aliases stand for; split it")

    def _close(self, anchor: str | None, before: int) -> None:
        self._nodes += 1
        if anchor is not None:
            self._sizes[anchor] = self._nodes - before


class _Loader(yaml.SafeLoader):
    """YAML, safe, in which a repeated key is an error rather than a silent replacement."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Construct a mapping; a repeated key raises."""
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a plain value", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} occurs twice", node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Construct an integer of a length that somebody may have meant."""
        if len(node.value) > _MOST_DIGITS:
            raise yaml.constructor.ConstructorError(None, None, "a number is too long", node.start_mark)
        return int(super().construct_yaml_int(node))

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        """Construct a number, as above."""
        if len(node.value) > _MOST_DIGITS:
            raise yaml.constructor.ConstructorError(None, None, "a number is too long", node.start_mark)
        return float(super().construct_yaml_float(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)
