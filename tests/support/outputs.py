"""What commands print with --json, held against the published schemas."""

import json
from typing import Any

import jsonschema
import msgspec

from host.cli.schemas import FOLDER, find_output


def checked(command: str, text: str) -> dict[str, Any]:
    """Return the one JSON object in `text` if docs/schemas has it so, with no key too many."""
    value: dict[str, Any] = json.loads(text)
    schema = json.loads((FOLDER / f"{command}.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(value)
    kept = msgspec.to_builtins(msgspec.json.decode(text, type=find_output(command)))
    assert kept == value, "the output has keys that its schema does not name"
    return value
