"""The job's key `optimizer`: a name alone, or a mapping with it and options."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from csd_emu.util.config_files import ShortForm
from host.config.plugins.plugin_section import UserSection
from host.config.sync_section import ChosenOptimiser, OptionValue


class NamedOptimiser(UserSection):
    """A class of `torch.optim`, or ``my_file.py:Class``; all keys but `name` are its options."""

    __pydantic_extra__: dict[str, OptionValue] = Field(init=False)  # type: ignore[assignment]

    name: str = Field(min_length=1)

    @property
    def is_own(self) -> bool:
        """Whether it is a class of the user's own."""
        return ":" in self.name

    @property
    def chosen(self) -> ChosenOptimiser:
        """The name and the options, as a section of synchronous jobs has them."""
        return ChosenOptimiser(name=self.name, arguments=dict(self.__pydantic_extra__ or {}))


def _expand(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


OptimizerKey = Annotated[
    NamedOptimiser,
    BeforeValidator(_expand),
    ShortForm(lambda: {"type": "string", "minLength": 1, "examples": ["Adam", "my_optimizer.py:Class"]}),
]
