"""`csd-emu image build`, `export`, `import`, `key`, `list` and `prune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from csd_emu.util.paths import Paths
from firmware_agent.common.units import format_bytes
from host.cli.common_options import Json
from host.core.console import StageProgress, console, print_json

if TYPE_CHECKING:
    from csd_emu.image import ImageStore
    from host.app.image_actions import ImageReport

image_app = typer.Typer(no_args_is_help=True, help="The ARM image that every emulated drive boots.")


def _open_store() -> ImageStore:
    from csd_emu.image import ImageStore

    return ImageStore(Paths.default().images)


@image_app.command("build")
def image_build(
    rebuild: Annotated[bool, typer.Option("--rebuild", help="build anew even if there is one")] = False,
    as_json: Json = False,
) -> None:
    """Build the image of this version; needs no root, and is checked by one boot."""
    with StageProgress(quiet=as_json) as progress:
        _open_store().ensure(progress, rebuild=rebuild)
    _show(as_json)


@image_app.command("export")
def image_export(
    file: Annotated[Path, typer.Argument(help="the file to write, for example arm-image.tar.zst")],
    as_json: Json = False,
) -> None:
    """Write the image of this version as one file, without keys, for machines that shall not build it."""
    with StageProgress(quiet=as_json) as progress:
        progress.stage(f"write {file}")
        _open_store().write(file)
    _show(as_json)


@image_app.command("import")
def image_import(
    file: Annotated[Path, typer.Argument(help="a file that `csd-emu image export` wrote")],
    as_json: Json = False,
) -> None:
    """Make the image of this version from an exported file, with keys of its own, unless it is there."""
    with StageProgress(quiet=as_json) as progress:
        _open_store().read(file, progress)
    _show(as_json)


@image_app.command("key")
def image_key() -> None:
    """Print the hash that decides whether an exported image fits this version: a cache's key, in CI."""
    print(_open_store().key)


@image_app.command("list")
def image_list(as_json: Json = False) -> None:
    """List the images in the cache."""
    _show(as_json)


@image_app.command("prune")
def image_prune(as_json: Json = False) -> None:
    """Remove all images and templates but those of this version."""
    from host.app.image_actions import prune_images

    report = prune_images(Paths.default())
    print_json(report) if as_json else print_images(report)


def _show(as_json: bool) -> None:
    """Print the images that are in the cache now."""
    from host.app.image_actions import list_images

    report = list_images(Paths.default())
    print_json(report) if as_json else print_images(report)


def print_images(report: ImageReport) -> None:
    """Print the images in the cache, and what was removed."""
    for name in report.removed:
        console.print(f"removed {name}")
    if not report.images:
        console.print("no image is in the cache; csd-emu image build makes one")
        return
    table = Table("image", "size", "build s (wall)", "of this version")
    for image in report.images:
        table.add_row(
            image.hash, format_bytes(image.size_bytes), f"{image.build_seconds:.1f}", "yes" if image.current else "no"
        )
    console.print(table)
