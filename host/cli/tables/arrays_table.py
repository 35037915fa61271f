"""Tables of `csd-emu up`, `down`, `status`, `sweep`, `inject` and `validate`."""

from __future__ import annotations

from rich.table import Table

from host.app.array_actions import StatusReport, SweepReport
from host.app.inject_fault import InjectReport
from host.app.validation import ValidationReport
from host.core.console import console, print_line


def print_status(report: StatusReport) -> None:
    """Print a table of arrays and their drives."""
    if not report.arrays:
        console.print("no array is up")
        return
    for array in report.arrays:
        table = Table(
            *("drive", "profile", "state", "records", "incarnation"),
            title=f"{array.array} ({array.engine}): {array.state}",
        )
        for device in array.devices:
            table.add_row(device.name, device.profile, device.state, str(device.samples), str(device.incarnation))
        console.print(table)


def print_sweep(report: SweepReport) -> None:
    """Print which drives were ended."""
    for array in report.busy:
        console.print(f"{array}: in use by another csd-emu process, left alone")
    if not any(report.ended.values()):
        console.print("nothing was left")
    for array, devices in report.ended.items():
        if devices:
            console.print(f"{array}: ended {', '.join(devices)}")


def print_injection(report: InjectReport) -> None:
    """Print what was done to a drive."""
    noted = "the run has recorded it" if report.recorded else "no run is going on that could record it"
    console.print(f"{report.array} {report.device}: {report.detail}; {noted}", markup=False, soft_wrap=True)


def print_validation(report: ValidationReport) -> None:
    """Print what was checked, and the domain XML if it was asked for."""
    engines = dict.fromkeys(group["engine"] or report.array["engine"] for group in report.array["devices"])
    console.print(f"{report.array['name']}: {len(report.devices)} drives ({'+'.join(engines)}), valid")
    if report.job is not None:
        tried = "" if report.built else "; your own code was not run: --build imports and tries it"
        console.print(f"job: {report.job['model']} on {report.job['data']['source']}, valid{tried}", soft_wrap=True)
    for xml in report.domains.values():
        print_line(xml)
