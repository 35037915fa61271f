"""Table of `csd-emu up --plan`."""

from __future__ import annotations

from rich.table import Table

from firmware_agent.common.units import format_bytes
from host.cli.vm_schedule import VmScheduleReport
from host.core.console import console, print_whole


def print_vm_schedule(report: VmScheduleReport) -> None:
    """Print a table of the hypervisors and of the drives that would go on each."""
    table = Table(
        *("hypervisor", "URI", "cores", "memory", "disk", "room for", "drives"),
        title=f"{report.array}: drives on hypervisors (spread: {report.spread}); nothing was started",
    )
    for each in report.hypervisors:
        drives = f"{len(each.devices)}: {', '.join(each.devices)}" if each.devices else "none"
        amounts = ["unknown" if size is None else format_bytes(size) for size in (each.memory_bytes, each.disk_bytes)]
        room = "any number" if each.room is None else f"{each.room} more"
        if each.problem:
            table.add_row(each.name, each.uri, *["-"] * 4, f"cannot be used: {each.problem}")
        else:
            table.add_row(each.name, each.uri, str(each.cores), *amounts, room, drives)
    print_whole(table)
    for name, why in report.unplaced.items():
        console.print(f"{name} would not start: {why}", soft_wrap=True, markup=False)
