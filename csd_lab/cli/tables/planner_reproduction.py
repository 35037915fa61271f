"""The reproduction of the planner, for people."""

from __future__ import annotations

from csd_lab.cli.tables.reproduction import make_table, print_files, print_notes
from csd_lab.reproduce.planner_result import PlannerReport
from host.core.console import print_whole


def print_planner_reproduction(report: PlannerReport) -> None:
    """Print headlines, everyone's figures, sensitivities, and notes."""
    table = make_table("Published beside ours", ("published result", "what", "published", "ours"))
    table.columns[0].justify = table.columns[1].justify = "left"
    for row in report.beside:
        table.add_row(row.source, row.what, f"{row.published:.1%}", f"{row.ours:.1%} ({row.basis})")
    print_whole(table)
    _print_choosing(report)
    table = make_table(
        "Our planner with other trials, and in noisier worlds",
        ("of", "value", "hit rate", "mean regret", "overhead", "time error", "energy error"),
    )
    for each in report.sensitivity:
        figures = (each.hit_rate, each.mean_regret, each.overhead, each.time_error, each.energy_error)
        table.add_row(each.of, f"{each.value:g}", *(f"{figure:.1%}" for figure in figures))
    print_whole(table)
    print_notes(report.notes)
    print_files(report.files, report.wall_seconds, report.clock)


def _print_choosing(report: PlannerReport) -> None:
    table = make_table(
        f"Who chooses, over {report.cases} cases; in {report.hard_cases} of them no fixed rule is right, ours is "
        f"in {report.hit_rate_hard:.1%} of these",
        ("who", "hit rate", "same devices", "within 5 %", "mean regret", "worst regret", "overhead"),
    )
    table.columns[0].justify = "left"
    for row in report.choosing:
        rates = (row.hit_rate, row.hit_rate_same_configuration, row.within_5_percent)
        figures = (*rates, row.mean_regret, row.worst_regret, row.overhead)
        table.add_row(row.who, *(f"{figure:.1%}" for figure in figures))
    print_whole(table)
