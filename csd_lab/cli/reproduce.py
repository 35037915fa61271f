"""`csd-emu reproduce`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from csd_emu.util.paths import Paths
from csd_lab.cli.simulate import print_assumed
from csd_lab.cli.verdict_tables import print_predictions, print_table, print_traffic_needs, print_verdicts
from firmware_agent.common.units import format_bytes
from host.cli.common_options import Json
from host.core.console import StageProgress, console, print_json
from host.core.interrupts import INTERRUPTS

if TYPE_CHECKING:
    from csd_lab.reproduce.hypertune_result import (
        BatchEffect,
        DisturbanceFigures,
        HypertuneReport,
        Scaling,
    )
    from csd_lab.reproduce.placement_result import PlacementReport, Placing, RanPlacement
    from csd_lab.reproduce.planner_result import PlannerReport

reproduce_app = typer.Typer(no_args_is_help=True, help="Published results beside ours.")


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(reproduce_app, name="reproduce")


@reproduce_app.callback()
def reproduce() -> None:
    """Work out what was published, with every assumption listed."""


@reproduce_app.command()
def hypertune(
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="write CSV, JSON and charts into this folder too")
    ] = None,
    as_json: Json = False,
) -> None:
    """STANNIS and HyperTune: speed, energy and traffic for 0 to 36 drives, and a node that is disturbed."""
    with INTERRUPTS.deferred():
        from csd_emu.profiles.calibration import CalibrationStore
        from csd_lab.reproduce.reproduce_hypertune import reproduce_hypertune
    with StageProgress(quiet=as_json) as progress:
        report = reproduce_hypertune(CalibrationStore(Paths.default().calibration), output, progress)
    print_json(report) if as_json else print_hypertune(report)


@reproduce_app.command()
def placement(
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="write CSV and JSON into this folder too")
    ] = None,
    wall: Annotated[
        bool,
        typer.Option("--wall", help="run scaled models on native drives, too; a minute or two more"),
    ] = False,
    as_json: Json = False,
) -> None:
    """Layers on the host: traffic and time for five models, 1 to 36 drives and four links."""
    with INTERRUPTS.deferred():
        from csd_emu.profiles.calibration import CalibrationStore
        from csd_lab.reproduce.reproduce_placement import reproduce_placement
    with StageProgress(quiet=as_json) as progress:
        paths = Paths.default()
        report = reproduce_placement(CalibrationStore(paths.calibration), output, progress, paths if wall else None)
    print_json(report) if as_json else print_placement_reproduction(report)


@reproduce_app.command()
def planner(
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="write CSV, JSON and a chart into this folder too")
    ] = None,
    seed: Annotated[int, typer.Option(help="of the worlds", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Which devices train: hit rate, regret and overhead over 60 made-up worlds, ours and Gu et al.'s."""
    with INTERRUPTS.deferred():
        from csd_lab.reproduce.reproduce_planner import reproduce_planner
    with StageProgress(quiet=as_json) as progress:
        report = reproduce_planner(seed, output, progress)
    print_json(report) if as_json else print_planner_reproduction(report)


def print_planner_reproduction(report: PlannerReport) -> None:
    """Print verdicts, headlines, everyone's figures, sensitivities, and notes."""
    print_verdicts(report.verdicts)
    print_table(
        "Published beside ours",
        ("published result", "what", "published", "ours"),
        ((row.source, row.what, f"{row.published:.1%}", f"{row.ours:.1%} ({row.basis})") for row in report.beside),
        left=2,
    )
    print_table(
        f"Who chooses, over {report.cases} cases; in {report.hard_cases} of them no fixed rule is right, ours is "
        f"in {report.hit_rate_hard:.1%} of these",
        ("who", "hit rate", "same devices", "within 5 %", "mean regret", "worst regret", "overhead"),
        ((row.who, *_percent(row, *_CHOOSING)) for row in report.choosing),
        left=1,
    )
    print_table(
        "Our planner with other trials, and in noisier worlds",
        ("of", "value", "hit rate", "mean regret", "overhead", "time error", "energy error"),
        ((row.of, f"{row.value:g}", *_percent(row, *_SENSITIVITY)) for row in report.sensitivity),
    )
    print_end(report)


_CHOOSING = ("hit_rate", "hit_rate_same_configuration", "within_5_percent", "mean_regret", "worst_regret", "overhead")
_SENSITIVITY = ("hit_rate", "mean_regret", "overhead", "time_error", "energy_error")


def _percent(row: object, *names: str) -> list[str]:
    return [f"{getattr(row, name):.1%}" for name in names]


def print_placement_reproduction(report: PlacementReport) -> None:
    """Print verdicts, headlines, traffic, one table per model, and notes."""
    print_verdicts(report.verdicts)
    _print_traffic(report)
    for model in dict.fromkeys(row.model for row in report.placing):
        _print_placing([row for row in report.placing if row.model == model])
    if report.ran:
        _print_ran(report.ran)
    print_table(
        "Published beside ours: speed-up by placement",
        ("published result", "published", "ours", "at"),
        (
            (row.source, row.published, f"{row.ours_low:.2f} to {row.ours_high:.2f} ({row.basis})", row.ours_at)
            for row in report.beside
        ),
        left=1,
    )
    print_end(report)


def _print_traffic(report: PlacementReport) -> None:
    shown = ("model", "batch", "bytes moved", "compute moved", "crossing", "without", "with", "ratio")
    print_table(
        "Traffic of one drive's step, full-size models, cut before the linear layers at the end",
        (*shown, "counted", "derived"),
        (
            (
                row.model,
                str(row.batch),
                f"{row.moved_parameters:.1%}",
                f"{row.moved_compute:.2%}",
                format_bytes(row.crossing_bytes),
                format_bytes(row.whole_bytes),
                format_bytes(row.cut_bytes),
                f"{row.ratio:.2f}",
                "-" if row.counted_ratio is None else f"{row.counted_ratio:.2f}",
                "-" if row.derived_ratio is None else f"{row.derived_ratio:g}",
            )
            for row in report.traffic
        ),
    )


def _print_ran(rows: Sequence[RanPlacement]) -> None:
    print_table(
        "Scaled models on native drives behind a shaped link: medians of real steps (wall)",
        ("model", "drives", "link", "wire/compute", "host begins with", "whole s", "cut s", "speed-up", "foretold"),
        (
            (
                row.model,
                str(row.drives),
                f"{format_bytes(row.link_bytes_per_second)}/s",
                f"{row.wire_over_compute:.2g}",
                row.layer or "none",
                f"{row.unmoved_seconds:.3g}",
                f"{row.step_seconds:.3g}",
                f"{row.speedup:.2f}x",
                "-" if row.foretold_speedup is None else f"{row.foretold_speedup:.2f}x",
            )
            for row in rows
        ),
    )


def _print_placing(rows: Sequence[Placing]) -> None:
    """Print one model: a row for each number of drives, a column for each link."""
    rates = dict.fromkeys(row.link_bytes_per_second for row in rows)
    print_table(
        f"{rows[0].model}, {rows[0].batch} records a drive (simulated): wire/compute, the host's first layer, speed-up",
        ("drives", *(f"{format_bytes(rate)}/s" for rate in rates)),
        (
            (str(drives), *(_cell(row) for row in rows if row.drives == drives))
            for drives in dict.fromkeys(row.drives for row in rows)
        ),
    )


def _cell(row: Placing) -> str:
    layer = "none" if row.layer is None else f"{row.layer} {row.speedup:.2f}x"
    return f"{row.wire_over_compute:.2g}: {layer}"


def print_hypertune(report: HypertuneReport) -> None:
    """Print verdicts, predictions, traffic, inputs, a table per model, batches, disturbances, watts, and notes."""
    print_verdicts(report.verdicts)
    frozen = f"{report.inputs_frozen} (SHA-256 {report.inputs_sha256[:12]})"
    console.print(f"predicted from inputs that were frozen {frozen}; none is of these papers")
    print_predictions(report.predictions)
    print_traffic_needs(report.traffic)
    _print_inputs(report)
    for model in dict.fromkeys(row.model for row in report.scaling):
        _print_scaling([row for row in report.scaling if row.model == model])
    _print_batches(report.batches)
    _print_disturbed(report.disturbed)
    _print_needed(report)
    print_end(report)


def print_end(report: HypertuneReport | PlacementReport | PlannerReport) -> None:
    """Print what to know when reading a reproduction, what was written, and what it all took."""
    for note in report.notes:
        console.print(f"* {note}", markup=False)
    print_assumed(getattr(report, "assumed", []))
    for file in report.files:
        console.print(f"written: {file}", markup=False)
    console.print(f"{report.wall_seconds:.1f} s of wall time; clock of all else: {report.clock}")


def _print_inputs(report: HypertuneReport) -> None:
    print_table(
        "What it rests on: one drive (emulated: counted seconds in cycles, scaled)",
        ("model", "measured batches", "records/s", "memory", "state", "record", "cycles", "basis"),
        (
            (
                row.model,
                ",".join(map(str, row.measured_batches)),
                f"{row.drive_records_per_second:.3g}",
                *map(format_bytes, (row.peak_memory_bytes, row.state_bytes, row.record_bytes)),
                row.cycles,
                row.basis,
            )
            for row in report.inputs
        ),
    )


def _print_scaling(rows: Sequence[Scaling]) -> None:
    """Print one model: the middle of the band, and the ends behind it."""
    ratios = sorted({row.ratio for row in rows})

    def shown(drives: int) -> Sequence[str]:
        fast, middle, slow = sorted((row for row in rows if row.drives == drives), key=lambda row: row.ratio)
        return (
            str(drives),
            f"{middle.drive_batch}, {middle.host_batch}",
            f"{middle.records_per_second:.4g}",
            f"{middle.joules_per_record:.4g}",
            format_bytes(middle.link_bytes_per_record),
            f"{middle.speedup:.2f} ({slow.speedup:.2f} to {fast.speedup:.2f})",
            f"{middle.energy_factor:.2f} ({slow.energy_factor:.2f} to {fast.energy_factor:.2f})",
        )

    print_table(
        f"{rows[0].model} (simulated): a host is worth {ratios[1]:.3g} drives ({ratios[-1]:.3g} to {ratios[0]:.3g})",
        ("drives", "batch, host's", "records/s", "J/record", "link/record", "speed-up", "energy factor"),
        map(shown, dict.fromkeys(row.drives for row in rows)),
    )


def _print_batches(rows: Sequence[BatchEffect]) -> None:
    shown: list[Sequence[str]] = []
    for _, of_model in groupby(rows, lambda row: row.figures.model):
        for row in of_model:
            own = row.figures
            shown.append(
                (
                    own.model,
                    f"{own.drive_batch}, {own.host_batch}",
                    f"{own.step_seconds:.3g}",
                    f"{own.exchange_seconds / own.step_seconds:.0%}",
                    f"{own.speedup:.2f}",
                    f"{own.energy_factor:.2f}",
                    format_bytes(own.link_bytes_per_record),
                    row.chosen,
                )
            )
        shown.append(())
    print_table(
        f"What the batch does: {rows[0].figures.drives} drives, the middle of what a host is worth (simulated)",
        ("model", "batch, host's", "step s", "exchange", "speed-up", "energy", "link/record", "chosen by"),
        shown,
    )


def _print_disturbed(rows: Sequence[DisturbanceFigures]) -> None:
    """Print the first model's experiment; throughput as a share of the undisturbed."""

    def shown(row: DisturbanceFigures) -> Sequence[str]:
        shares = (row.during_without, row.during_with, row.retuned, row.ceiling, row.after)
        joules = (row.before_joules, row.during_without_joules, row.during_with_joules, row.after_joules)
        return (
            row.node,
            f"{row.lost:g}",
            f"{row.share:.3f}",
            *(f"{value / row.before:.3f}" for value in shares),
            "-" if row.detect_steps is None else f"{row.detect_steps}",
            *(f"{value:.3g}" for value in joules),
        )

    print_table(
        f"Disturbance, {rows[0].model} (simulated; throughput over before, J per record)",
        (
            *("node", "f", "h", "left", "HyperTune", "retuned", "1 - f h", "after", "found"),
            *("J before", "left", "tuned", "after"),
        ),
        (shown(row) for row in rows if row.model == rows[0].model),
    )
    console.print("found: slow steps until the new batches were in force; HyperTune, after: those steps included")


def _print_needed(report: HypertuneReport) -> None:
    print_table(
        "Watts that computing may add to each drive if a published result is to hold",
        ("published result", "speed-up / energy factor", "power ratio", "needed", "assumed here"),
        (
            (
                row.source,
                f"{row.speedup:.3g} / {row.energy_factor:.3g}",
                f"{row.power_ratio:.2f}",
                f"{row.needed_watts:.1f} W" + ("" if row.needed_watts > 0 else " (impossible)"),
                f"{row.assumed_watts:.1f} W",
            )
            for row in report.needed
        ),
        left=1,
    )
