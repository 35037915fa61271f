"""The job file's `strategy`: a name alone, or a mapping with the name and the algorithm's own keys."""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from csd_emu.config import Config


class FedAvgSection(Config):
    """The mean weighted by samples."""

    name: Literal["fedavg"]


class FedProxSection(Config):
    """FedAvg whose drives are held near the global weights by `mu`."""

    name: Literal["fedprox"]
    mu: float = Field(default=0.01, ge=0, le=1e6, allow_inf_nan=False)


class FedNovaSection(Config):
    """Updates normalised by local steps."""

    name: Literal["fednova"]


class FedAdamSection(Config):
    """Adam on the host; `tau` is its degree of adaptivity."""

    name: Literal["fedadam"]
    learning_rate: float = Field(default=0.01, gt=0, le=100, allow_inf_nan=False)
    beta1: float = Field(default=0.9, ge=0, lt=1, allow_inf_nan=False)
    beta2: float = Field(default=0.99, ge=0, lt=1, allow_inf_nan=False)
    tau: float = Field(default=1e-3, gt=0, le=1, allow_inf_nan=False)


_Any = FedAvgSection | FedProxSection | FedNovaSection | FedAdamSection
NAMES = tuple(get_args(kind.model_fields["name"].annotation)[0] for kind in get_args(_Any))


def _expand(value: object) -> object:
    """Return the mapping that a name alone stands for; a name that is not known is refused here, in plain words."""
    if isinstance(value, Config):
        return value
    section: Any = {"name": value} if isinstance(value, str) else value
    if not isinstance(section, dict) or "name" not in section:
        raise ValueError("must be a name, or a mapping with one, for example fedavg or {name: fedprox, mu: 0.01}")
    name = section["name"]
    if name not in NAMES:
        near = difflib.get_close_matches(str(name), NAMES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(NAMES)}"
        raise ValueError(f"strategy {name!r} is not known; {hint}")
    return section


class _NameAlone:
    """Adds the short form to the published schema."""

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "enum": list(NAMES)}, handler(core_schema)]}


StrategySection = Annotated[_Any, Field(discriminator="name"), BeforeValidator(_expand), _NameAlone()]
