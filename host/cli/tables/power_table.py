"""Profiles and fitted watts, for people."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from host.cli.power_reports import PowerFitReport, ProfilesReport
from host.core.console import console


def print_profiles(report: ProfilesReport) -> None:
    """Print every figure with its unit and source; assumed ones stand out."""
    for profile in report.profiles:
        table = Table("figure", "value", "unit", "source", title=f"{profile.name} ({profile.kind})")
        table.columns[1].justify = "right"
        for figure in profile.figures:
            source = escape(figure.source)
            table.add_row(
                figure.figure, f"{figure.value:.6g}", figure.unit, f"[yellow]{source}[/]" if figure.assumed else source
            )
        console.print(table)
        assumed = sum(figure.assumed for figure in profile.figures)
        console.print(f"{profile.name}: {assumed} of {len(profile.figures)} figures are assumed\n")


def print_power_fit(report: PowerFitReport) -> None:
    """Print fitted watts with their standard errors, and where the profile is."""
    console.print(f"idle   {report.idle_watts:.3f} W, standard error {report.idle_standard_error_watts:.3f} W")
    console.print(f"active {report.active_watts:.3f} W more, standard error {report.active_standard_error_watts:.3f} W")
    console.print(f"residual {report.residual_watts:.3f} W over {report.samples} rows in {report.seconds:.6g} s")
    console.print(f"profile {report.profile} (on {report.base}): {escape(report.path)}", soft_wrap=True)
