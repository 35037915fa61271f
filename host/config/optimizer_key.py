"""The job's key `optimizer`: a name alone, or a mapping with it and options."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from csd_emu.util.config_files import ShortForm
from host.config.plugins.plugin_section import UserSection
from host.config.sync_section import OptimiserSection, OptionValue


class NamedOptimiser(UserSection):
    """A class of `torch.optim`, or ``my_file.py:Class``; all keys but `name` are its options."""

    __pydantic_extra__: dict[str, OptionValue] = Field(init=False)  # type: ignore[assignment]

    name: str = Field(min_length=1)
    # What messages call it and its options.
    key: ClassVar[str] = "optimizer"
    options_key: ClassVar[str] = "optimizer"

    @property
    def arguments(self) -> dict[str, Any]:
        """The options, as a section of synchronous jobs calls them."""
        return self.options


AnyOptimiser = OptimiserSection | NamedOptimiser
OptimizerKey = Annotated[
    NamedOptimiser,
    BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value),
    ShortForm(lambda: {"type": "string", "minLength": 1, "examples": ["Adam", "my_optimizer.py:Class"]}),
]
