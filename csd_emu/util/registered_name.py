"""A key of a configuration file that names a class of a registry."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from csd_emu.util.registry import Registry
from firmware_agent.common.errors import PluginError


class RegisteredName:
    """The rule of a key that names a class of `registry`, and its published schema."""

    def __init__(self, registry: Registry, *, offered: bool = False) -> None:
        """Take the registry; of `offered` names alone, if it is an option in place of a file's key."""
        self._registry, self._offered = registry, offered

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of a text that is a known name."""
        return handler.generate_schema(Annotated[str, AfterValidator(self._check)])

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the names of today."""
        return {"type": "string", "enum": list(self._registry.offered if self._offered else self._registry.names)}

    def _check(self, name: str) -> str:
        if self._offered and name not in self._registry.offered:
            raise ValueError(f"must be one of: {', '.join(map(repr, self._registry.offered))}")
        try:
            self._registry.check_name(name)
        except PluginError as error:
            raise ValueError(str(error)) from error
        return name
