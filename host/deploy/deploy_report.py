"""Report of `csd-emu deploy`: one line a drive, and an exit code."""

from __future__ import annotations

import msgspec

from host.deploy.verb_protocol import VerbOutcome, VerbResult

FINE, FAILED = 0, 1


class DeployReport(msgspec.Struct, frozen=True):
    """`csd-emu deploy`: how a verb ended on each drive."""

    inventory: str
    verb: str
    dry_run: bool
    drives: list[VerbOutcome]
    wall_seconds: float


def exit_code(report: DeployReport) -> int:
    """Return 0 if all went well on every drive, else 1; bad input has ended the command before, with 2."""
    return FAILED if any(drive.result in (VerbResult.FAILED, VerbResult.SKIPPED) for drive in report.drives) else FINE
