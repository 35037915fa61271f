"""Printing of an output as JSON."""

from __future__ import annotations

import sys

import msgspec

from host.core.plain_text import plain_json


def print_json(output: msgspec.Struct) -> None:
    """Print one output as one indented JSON object."""
    sys.stdout.buffer.write(plain_json(msgspec.json.format(msgspec.json.encode(output))) + b"\n")
    sys.stdout.flush()
