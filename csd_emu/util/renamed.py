"""Names that have changed: for one release the old one is written beside the new one, and is read in its place."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

import msgspec

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

_NEW_NAME = "new_name"
# Old key -> new key, of run directories that 0.1.0 wrote.
OLD_KEYS = {
    "host_link_bytes_per_image": "host_link_bytes_per_record",
    "images_per_array_second": "records_per_array_second",
    "images_per_device_second": "records_per_device_second",
    "joules_per_image": "joules_per_record",
    "possible_images_per_second": "possible_records_per_second",
}
# Old figure -> new figure, of a gate's baselines and bands.
OLD_FIGURES = {
    "images_per_device_second": "records_per_device_second",
    "joules_per_image": "joules_per_record",
}


def old_name_of(new: str) -> msgspec.Meta:
    """Return the annotation of a field of `Renamed` that repeats the field `new` under its old name."""
    return msgspec.Meta(
        description=f"Deprecated: the old name of {new}, for one release.",
        extra_json_schema={"deprecated": True},
        extra={_NEW_NAME: new},
    )


class Renamed(msgspec.Struct, frozen=True):
    """A structure whose fields with `old_name_of` always have the value of the field that they are the old name of."""

    def __post_init__(self) -> None:
        for old, new in old_names(type(self)).items():
            msgspec.structs.force_setattr(self, old, getattr(self, new))


@functools.cache
def old_names(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return old name -> new name of the renamed fields of `kind`, in the order of its fields."""
    return {
        name: each.extra[_NEW_NAME]
        for name, hint in get_type_hints(kind, include_extras=True).items()
        for each in (get_args(hint)[1:] if get_origin(hint) is Annotated else ())
        if isinstance(each, msgspec.Meta) and each.extra and _NEW_NAME in each.extra
    }


def with_new_keys(value: Any) -> Any:
    """Return what JSON held with the new key beside each old one that stands alone, at any depth."""
    if isinstance(value, list):
        return [with_new_keys(each) for each in value]
    if not isinstance(value, dict):
        return value
    held = {key: with_new_keys(each) for key, each in value.items()}
    return {new: held[old] for old, new in OLD_KEYS.items() if old in held} | held


def renamed_figure(name: str, where: str) -> str:
    """Return the name that the figure `name` has now; if it is an old one, a warning says so, and `where` it stands."""
    if name not in OLD_FIGURES:
        return name
    new = OLD_FIGURES[name]
    told = f"{where}: the figure {name} is called {new} now; write that, for the next release does not know {name}"
    log.warning("%s", told)
    return new


def warn_of_old_name(old: str, new: str) -> None:
    """Warn the caller of a function, method or property that still uses its old name."""
    warnings.warn(f"{old} is deprecated: use {new}", FutureWarning, stacklevel=3)


def old_method(name: str, method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Return a method under its old `name`: it calls `method` itself, not what overrides it, with a warning."""

    def call(self: S, /, *args: P.args, **keywords: P.kwargs) -> R:
        warn_of_old_name(name, method.__name__)
        return method(self, *args, **keywords)

    call.__name__, call.__doc__ = name, f"Old name of `{method.__name__}`, for one release."
    return call


def adopt_old_methods(kind: type, renamed: Mapping[str, str]) -> None:
    """Have a user's class that defines a method under its old name define it under its new name too; a warning says so.

    Args:
        kind: the user's class.
        renamed: old name -> new name.
    """
    for old, new in renamed.items():
        owner = next((each for each in kind.__mro__ if old in vars(each) or new in vars(each)), None)
        if owner is not None and new not in vars(owner):
            warnings.warn(f"{owner.__name__}.{old} is deprecated: call it {new}", FutureWarning, stacklevel=2)
            setattr(owner, new, vars(owner)[old])
