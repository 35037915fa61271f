"""The published JSON schemas of what commands print with ``--json``: ``python -m host.schemas`` writes docs/schemas."""

from __future__ import annotations

import json
from pathlib import Path

from host.outputs import OUTPUTS, schema

FOLDER = Path(__file__).parents[1] / "docs" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_files() -> dict[str, str]:
    """Return file name -> content, one schema per command."""
    return {
        f"{name}.json": json.dumps({"$schema": DIALECT, "title": f"csd-emu {name} --json"} | schema(name), indent=2)
        + "\n"
        for name in OUTPUTS
    }


def main() -> None:
    """Write the files; one that belongs to no command is removed."""
    files = schema_files()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in FOLDER.glob("*.json"):
        if path.name not in files:
            path.unlink()
    for name, content in files.items():
        (FOLDER / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
