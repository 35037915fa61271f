"""Table of `csd-emu image`."""

from __future__ import annotations

from rich.table import Table

from firmware_agent.common.units import format_bytes
from host.app.image_actions import ImageReport
from host.core.console import console


def print_images(report: ImageReport) -> None:
    """Print the images in the cache, and what was removed."""
    for name in report.removed:
        console.print(f"removed {name}")
    if not report.images:
        console.print("no image is in the cache; csd-emu image build makes one")
        return
    table = Table("image", "size", "build s (wall)", "of this version")
    for image in report.images:
        size = format_bytes(image.size_bytes)
        table.add_row(image.hash, size, f"{image.build_seconds:.1f}", "yes" if image.current else "no")
    console.print(table)
