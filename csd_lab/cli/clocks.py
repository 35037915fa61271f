"""`csd-emu clocks`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from host.cli.common_options import ArrayOption, JobFile, Json
from host.core.console import StageProgress, console, figures_table, print_json
from host.core.figure_bands import IN_BRACKETS, format_band, format_ratio, stack_band
from host.core.interrupts import INTERRUPTS

if TYPE_CHECKING:
    from csd_lab.clocks.clock_comparison import ClockComparison
    from csd_lab.clocks.decisions import Decision


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(clocks)


def clocks(
    job: JobFile,
    array: ArrayOption,
    runs: Annotated[Path, typer.Option(help="folder for run directories")] = Path("runs"),
    native: Annotated[
        bool, typer.Option("--native", help="run it on native drives too, and compare the final weights")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a job twice, every step counted and then some, and show how far the sampled clock is from the counted one."""
    with INTERRUPTS.deferred():
        from csd_lab.clocks.clock_comparison import compare_clocks
        from host.config.array_files import read_array

        config = read_array(array)
    with StageProgress(quiet=as_json) as progress:
        comparison = compare_clocks(job, config, runs, native, progress)
    print_json(comparison) if as_json else print_clocks(comparison)


def print_clocks(comparison: ClockComparison) -> None:
    """Print the seconds on both clocks, decisions, weights and the wall time."""
    title = f"{comparison.job} on {comparison.array}: device seconds of {comparison.rounds} rounds"
    names = ("", "counted s", "sampled s", "difference", "95 % interval", "")
    table = figures_table(escape(title), names, left=("",))
    for each in comparison.seconds:
        table.add_row(
            escape(each.of),
            stack_band(format_band(f"{each.counted_seconds:.4f}", each.counted_band)),
            stack_band(format_band(f"{each.sampled_seconds:.4f}", each.sampled_band)),
            f"{each.error:+.2%}",
            f"±{each.interval_seconds / each.sampled_seconds:.2%}",
            "inside" if each.inside else "[red]outside[/]",
        )
    console.print(table)
    whole = next(each for each in comparison.seconds if each.of == "array")
    if whole.counted_band is not None:
        ratio = format_ratio(f"{whole.error:+.2%}", whole.sampled_band, whole.counted_band)
        console.print(f"{IN_BRACKETS}; the array's difference: {ratio}")
    console.print(comparison.sampling.text, markup=False)
    for clock, more in zip(("counted", "sampled"), comparison.more_rounds, strict=True):
        if more:
            rounds = "round" if more == 1 else "rounds"
            console.print(f"the {clock} run had {more} {rounds} more, which are left out")
    _print_decisions(comparison)
    if comparison.weights_difference is not None:
        console.print(f"final weights differ from a native run's by {comparison.weights_difference:g} at most")
    difference = f"{comparison.counted_weights_difference:.3g}"
    console.print(f"final weights differ from the counted run's by {difference}: its processor rounds otherwise")
    console.print(
        f"wall time: counted {comparison.counted_wall_seconds:.0f} s, sampled {comparison.sampled_wall_seconds:.0f} s "
        f"({comparison.wall_over_counted:.2f} of it)",
    )
    for note in comparison.sampled_notes:
        console.print(f"* {note}", markup=False)


def _print_decisions(comparison: ClockComparison) -> None:
    if not comparison.decisions:
        return
    console.print(f"decisions: {comparison.equal_decisions} of {comparison.decisions} are equal")
    if comparison.equal_decisions == comparison.decisions:
        return
    for clock, decisions in (("counted", comparison.counted_decisions), ("sampled", comparison.sampled_decisions)):
        console.print(f"{clock}: {'; '.join(map(_describe, decisions))}", markup=False)


def _describe(decision: Decision) -> str:
    sizes = ", ".join(f"{device} {size}" for device, size in decision.batches.items())
    return " ".join(filter(None, (f"step {decision.step}", decision.what, decision.choice, sizes)))
