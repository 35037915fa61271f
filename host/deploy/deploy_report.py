"""Report of `csd-emu deploy`: one line a drive, and an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from host.deploy.verb_protocol import VerbOutcome, VerbResult

FINE, FAILED = 0, 1


class DriveOutcome(msgspec.Struct, frozen=True):
    """How the verb ended on one drive.

    Attributes:
        result: ``done``, ``unchanged``, ``planned`` (a dry run), ``skipped`` or ``failed``.
        what: one line: what was done, or what went wrong and what to do.
        facts: what the verb found or did, by name; times are wall seconds of this server.
    """

    drive: str
    result: str
    what: str
    facts: dict[str, Any]


class DeployReport(msgspec.Struct, frozen=True):
    """`csd-emu deploy`: how a verb ended on each drive."""

    inventory: str
    verb: str
    dry_run: bool
    drives: list[DriveOutcome]
    wall_seconds: float


def make_report(
    inventory: str, verb: str, dry_run: bool, outcomes: Sequence[VerbOutcome], wall_seconds: float
) -> DeployReport:
    """Return the report of what a verb did."""
    drives = [DriveOutcome(one.drive, one.result.value, one.what, one.facts) for one in outcomes]
    return DeployReport(inventory, verb, dry_run, drives, wall_seconds)


def exit_code(report: DeployReport) -> int:
    """Return 0 if all went well on every drive, else 1; bad input has ended the command before, with 2."""
    bad = {VerbResult.FAILED.value, VerbResult.SKIPPED.value}
    return FAILED if any(drive.result in bad for drive in report.drives) else FINE
