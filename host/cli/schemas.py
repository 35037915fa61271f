"""The published JSON schemas of array and job files and of what commands print with ``--json``.

``python -m host.cli.schemas`` writes them to docs/schemas.
"""

from __future__ import annotations

import difflib
import json
from pathlib import Path

import msgspec
from pydantic import BaseModel

from csd_emu.config.array_file import ArrayConfig
from csd_emu.config.servers_file import ServersConfig
from csd_emu.engines.remote.inventory import Inventory
from firmware_agent.common.errors import ConfigurationError
from host.app.gate.gate_baseline import GateBaseline
from host.cli.outputs import list_outputs, schema
from host.config.job_file import JobConfig

CONFIGURATIONS: dict[str, type[BaseModel]] = {
    "array": ArrayConfig,
    "job": JobConfig,
    "inventory": Inventory,
    "servers": ServersConfig,
}
# Files that commands write and read again.
RECORDS: dict[str, type[msgspec.Struct]] = {"ci-baseline": GateBaseline}

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_files() -> dict[str, str]:
    """Return file name -> content: one schema per command, and one for each kind of file that is read."""
    schemas = {name: {"title": f"csd-emu {name} --json"} | schema(name) for name in list_outputs()}
    schemas |= {name: msgspec.json.schema(kind) for name, kind in RECORDS.items()}
    schemas |= {f"{name}.yaml": kind.model_json_schema() for name, kind in CONFIGURATIONS.items()}
    return {f"{name}.json": json.dumps({"$schema": DIALECT} | text, indent=2) + "\n" for name, text in schemas.items()}


def list_schemas() -> list[str]:
    """Return the names that `find_schema` knows."""
    return [*(f"{name}.yaml" for name in CONFIGURATIONS), *RECORDS, *list_outputs()]


def find_schema(name: str) -> str:
    """Return the JSON schema called `name`, as JSON text.

    Raises:
        ConfigurationError: there is none.
    """
    if name not in list_schemas():
        near = difflib.get_close_matches(name, list_schemas(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(list_schemas())}"
        raise ConfigurationError(f"schema {name!r} is not known; {hint}")
    return schema_files()[f"{name}.json"]


def check_clone(folder: Path) -> None:
    """Return if `folder`, two levels below a project's root, belongs to a clone: a package has no docs to write.

    Raises:
        SystemExit: it does not; the message says so.
    """
    if not (folder.parents[1] / "pyproject.toml").is_file():
        raise SystemExit(f"{folder}: is not in a clone of csd-emu; run this in a clone, where docs/ is")


def main() -> None:
    """Write the files; one that belongs to no command is removed."""
    check_clone(FOLDER)
    files = schema_files()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in FOLDER.glob("*.json"):
        if path.name not in files:
            path.unlink()
    for name, content in files.items():
        (FOLDER / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
