"""The job file's `strategy`: a name alone, or a mapping with the name and the algorithm's own keys."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, GetJsonSchemaHandler, Tag
from pydantic_core import CoreSchema

from csd_emu.config import Config
from host.plugins.kinds import STRATEGY
from host.plugins.section import USER, UserSection, expand, named_schema


class _BuiltInSection(Config):
    """What every built-in strategy takes.

    Attributes:
        update_norm: the largest L2 norm of a drive's update; a larger one is shortened to it. Null: as they come.
    """

    update_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class FedAvgSection(_BuiltInSection):
    """The mean weighted by samples."""

    name: Literal["fedavg"]


class FedProxSection(_BuiltInSection):
    """FedAvg whose drives are held near the global weights by `mu`."""

    name: Literal["fedprox"]
    mu: float = Field(default=0.01, ge=0, le=1e6, allow_inf_nan=False)


class FedNovaSection(_BuiltInSection):
    """Updates normalised by local steps."""

    name: Literal["fednova"]


class FedAdamSection(_BuiltInSection):
    """Adam on the host; `tau` is its degree of adaptivity."""

    name: Literal["fedadam"]
    learning_rate: float = Field(default=0.01, gt=0, le=100, allow_inf_nan=False)
    beta1: float = Field(default=0.9, ge=0, lt=1, allow_inf_nan=False)
    beta2: float = Field(default=0.99, ge=0, lt=1, allow_inf_nan=False)
    tau: float = Field(default=1e-3, gt=0, le=1, allow_inf_nan=False)


class MedianSection(_BuiltInSection):
    """The median of every single weight."""

    name: Literal["median"]


class TrimmedMeanSection(_BuiltInSection):
    """The mean of every single weight without the `discard` largest and the `discard` smallest."""

    name: Literal["trimmed_mean"]
    discard: int = Field(default=1, ge=0, le=10_000)


class KrumSection(_BuiltInSection):
    """The weights of the one drive that lies nearest to the others, of which `hostile` may be hostile."""

    name: Literal["krum"]
    hostile: int = Field(default=1, ge=0, le=10_000)


class MultiKrumSection(_BuiltInSection):
    """The mean of the `keep` drives that lie nearest to the others, of which `hostile` may be hostile.

    Attributes:
        hostile: drives that may return anything.
        keep: drives whose mean is taken; null for all but `hostile` + 2.
    """

    name: Literal["multi_krum"]
    hostile: int = Field(default=1, ge=0, le=10_000)
    keep: int | None = Field(default=None, ge=1, le=100_000)


_Any = (
    Annotated[FedAvgSection, Tag("fedavg")]
    | Annotated[FedProxSection, Tag("fedprox")]
    | Annotated[FedNovaSection, Tag("fednova")]
    | Annotated[FedAdamSection, Tag("fedadam")]
    | Annotated[MedianSection, Tag("median")]
    | Annotated[TrimmedMeanSection, Tag("trimmed_mean")]
    | Annotated[KrumSection, Tag("krum")]
    | Annotated[MultiKrumSection, Tag("multi_krum")]
    | Annotated[UserSection, Tag(USER)]
)


def _tag(value: Any) -> str:
    name = value["name"] if isinstance(value, dict) else value.name
    return name if name in STRATEGY.built_in else USER


def _expand(value: object) -> object:
    return expand(value, STRATEGY, "fedavg or {name: fedprox, mu: 0.01}")


class _Schema:
    """Adds the short form to the published schema."""

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return named_schema(STRATEGY, handler(core_schema)["oneOf"])


StrategySection = Annotated[_Any, Discriminator(_tag), BeforeValidator(_expand), _Schema()]
