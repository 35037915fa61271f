"""The headline figures of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from firmware_agent.common.units import format_bytes
from host.core.records import RoundRecord
from host.core.run_stats import RunStats
from host.monitoring.report.comparison import Comparison
from host.monitoring.report.formats import format_ends, format_number, format_seconds
from host.monitoring.report.load_run import RunData


@dataclass(frozen=True)
class Tile:
    """A headline figure: what it is, its value, its unit or clock, and what else must be known of it."""

    label: str
    value: str
    unit: str
    note: str = ""


def _figure_tiles(last: RoundRecord) -> list[Tile]:
    """Return what the model is worth after the last round."""
    found = {} if math.isnan(last.accuracy) else {"accuracy": (last.accuracy, "of held-out records, 0 to 1")}
    found |= {name.replace("_", " "): (value, "of held-out records") for name, value in last.metrics.items()}
    found = found or {"loss": (last.test_loss, "of held-out records")}
    return [Tile(name, f"{value:.4f}", unit, f"after round {last.round}") for name, (value, unit) in found.items()]


def list_tiles(run: RunData, totals: RunStats, comparison: Comparison, steps: Sequence[Tile] = ()) -> list[Tile]:
    """Return the headline figures, none if there was no round; `steps` are those of synchronous steps."""
    if not run.rounds:
        return []
    last, clock, bands = run.rounds[-1], totals.clock, totals.all_bands
    tiles = [
        *_figure_tiles(last),
        *([] if steps else [_drive_tile(totals)]),
        Tile(
            "speed of the array",
            format_number(totals.records_per_array_second),
            f"records per array second ({clock}){format_ends(bands.get('records_per_array_second'))}",
            f"{format_seconds(totals.array_seconds)}{format_ends(bands.get('array_seconds'), 'seconds')} of compute, "
            "flash and link, composed",
        ),
        *steps,
    ]
    if totals.energy_joules and totals.samples:
        tiles.append(_energy_tile(totals))
    if comparison.band:
        ends = [format_number(each.speedup, 2) for each in (comparison.band[-1], comparison.band[0])]
        tiles.append(
            Tile(
                "against the host alone",
                "\N{EN DASH}".join(ends),
                "times the speed of a host that trains (modelled)",
                "a band, see below",
            )
        )
    return [
        *tiles,
        Tile(
            "over the host link",
            format_bytes(totals.link_bytes),
            "counted on the wire",
            f"{format_bytes(totals.sent_bytes)} to the drives, {format_bytes(totals.received_bytes)} back",
        ),
        Tile(
            "cost of emulation",
            format_seconds(run.summary.wall_seconds if run.summary is not None else totals.wall_seconds),
            "wall time of this machine",
            "the whole command; no drive's speed" if run.summary else "the rounds; no drive's speed",
        ),
    ]


def _drive_tile(totals: RunStats) -> Tile:
    bands = totals.all_bands
    return Tile(
        "speed of a drive",
        format_number(totals.records_per_device_second),
        f"records per device second ({totals.clock}){format_ends(bands.get('records_per_device_second'))}",
        f"{totals.samples:,} records in {format_seconds(totals.compute_seconds)}"
        f"{format_ends(bands.get('device_seconds'), 'seconds')} of compute",
    )


def _energy_tile(totals: RunStats) -> Tile:
    bands = totals.all_bands
    return Tile(
        "energy per record",
        format_number(totals.joules_per_record * 1e3),
        f"mJ (modelled){format_ends(bands.get('joules_per_record'), scale=1e3)}",
        f"{format_number(totals.energy_joules)} J{format_ends(bands.get('energy_joules'))}, host and chassis included",
    )


def describe_status(run: RunData) -> str:
    """Return how the run ended, in a sentence."""
    if not run.rounds:
        return "No round was finished."
    if run.failures:
        return f"Failed; {len(run.rounds)} round{'s were' if len(run.rounds) != 1 else ' was'} finished."
    count = f"{len(run.rounds)} round" + ("s" if len(run.rounds) != 1 else "")
    if run.summary is None:
        return f"Ended early, after {count}."
    if run.summary.target_accuracy is None:
        return f"Finished after {count}; no target was set."
    verdict = "reached" if run.summary.reached else "missed"
    return f"Finished after {count}; the target accuracy {run.summary.target_accuracy:g} was {verdict}."
