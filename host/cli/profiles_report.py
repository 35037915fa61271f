"""`csd-emu profiles`: what it prints, as JSON and for people."""

from __future__ import annotations

import msgspec
from rich.markup import escape
from rich.table import Table

from csd_emu.profiles import PROFILES, get_profile, user_profiles
from csd_emu.profiles.profile import FigureEntry
from csd_emu.util.paths import Paths
from host.core.console import console


class ProfileEntry(msgspec.Struct, frozen=True):
    """One profile; `kind` is ``drive`` or ``host``."""

    name: str
    kind: str
    figures: list[FigureEntry]


class ProfilesReport(msgspec.Struct, frozen=True):
    """`csd-emu profiles`: the built-in profiles and the user's own, or the one that was asked for."""

    profiles: list[ProfileEntry]


def report_profiles(name: str | None, paths: Paths) -> ProfilesReport:
    """Return every figure of the profile called `name`, or of all: the built-in ones and the user's.

    Raises:
        ConfigurationError: there is no such profile, or a user's file is wrong.
    """
    profiles = (
        [*PROFILES.values(), *user_profiles(paths.profiles).values()]
        if name is None
        else [get_profile(name, paths.profiles)]
    )
    return ProfilesReport([ProfileEntry(profile.name, profile.kind, profile.entries()) for profile in profiles])


def print_profiles(report: ProfilesReport) -> None:
    """Print every figure with its unit and source; assumed ones stand out."""
    for profile in report.profiles:
        table = Table("figure", "value", "band", "unit", "source", title=f"{profile.name} ({profile.kind})")
        table.columns[1].justify = "right"
        for figure in profile.figures:
            source = escape(figure.source if figure.band is None else f"{figure.source}; band: {figure.band.source}")
            band = "" if figure.band is None else f"{figure.band.low:.6g} to {figure.band.high:.6g}"
            told = f"[yellow]{source}[/]" if figure.assumed else source
            table.add_row(figure.figure, f"{figure.value:.6g}", band, figure.unit, told)
        console.print(table)
        assumed = sum(figure.assumed for figure in profile.figures)
        console.print(f"{profile.name}: {assumed} of {len(profile.figures)} figures are assumed\n")
