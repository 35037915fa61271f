"""The job file's `data.partition`: by which rule records are dealt out to the drives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, JsonValue

from csd_emu.util.config_files import Config
from host.config.plugins.plugin_section import UserSection

Concentration = Annotated[float | None, Field(gt=0, le=1e6, allow_inf_nan=False)]
_WAYS = ("dirichlet", "classes_per_drive", "quantity", "column", "function")


class Partition(Config):
    """How records are dealt out to the drives: in one of these ways, or evenly at random if all are null.

    Attributes:
        dirichlet: concentration by which each class is spread over the drives; small is uneven.
        classes_per_drive: how many classes each drive holds; drives with a class share its records evenly.
        quantity: concentration by which the drives' numbers of records are drawn; which records they are is random.
        column: a field with one whole number per record, such as a user's; records of one value stay together.
        function: ``my_part.py:split`` (from the job file's folder) or ``package.module:function``: the user's own.
        options: keyword arguments of `function`.
    """

    dirichlet: Concentration = None
    classes_per_drive: int | None = Field(default=None, ge=1, le=1_000_000)
    quantity: Concentration = None
    column: str | None = Field(default=None, min_length=1, max_length=64)
    function: str | None = Field(default=None, min_length=1, max_length=256)
    options: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def ways(self) -> list[str]:
        """The keys that say how; none for evenly."""
        return [key for key in _WAYS if getattr(self, key) is not None]

    @property
    def own(self) -> UserSection | None:
        """Name and options of the user's own function, if that deals records out."""
        return None if self.function is None else UserSection.model_validate({"name": self.function} | self.options)

    def rules(self) -> Mapping[str, object]:
        """Return the rules of its keys."""
        ways, (where, _, name) = self.ways, (self.function or "").partition(":")
        odd = [key for key in self.options if key == "name" or not key.isidentifier()]
        return {
            f"{' and '.join(ways)}: records can be dealt out in one way alone; leave the others out": len(ways) > 1,
            f"function: {self.function!r} names none; write my_part.py:split or package.module:function": (
                self.function is not None and not (where and name)
            ),
            "options: are those of a function of your own; name it in function, or leave them out": (
                self.options and self.function is None
            ),
            f"options: {', '.join(map(repr, odd))} cannot be the name of an option; use another name": odd,
        }
