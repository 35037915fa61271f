"""Lists of what a command can be given by name, as ``--json`` prints them."""

from __future__ import annotations

import msgspec


class NamedText(msgspec.Struct, frozen=True):
    """Something that a command can be given by `name`, and what it is."""

    name: str
    text: str


class ExamplesReport(msgspec.Struct, frozen=True):
    """`csd-emu example`: what there is, and the files that were written."""

    examples: list[NamedText]
    written: list[str]
