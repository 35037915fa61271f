"""`csd-emu image build`, `list` and `prune`."""

from __future__ import annotations

from typing import Annotated

import typer

from csd_emu.paths import Paths
from host import printing
from host.commands.options import Json
from host.console import StageProgress
from host.outputs import print_json

image_app = typer.Typer(no_args_is_help=True, help="The ARM image that every emulated drive boots.")


@image_app.command("build")
def image_build(
    rebuild: Annotated[bool, typer.Option("--rebuild", help="build anew even if there is one")] = False,
    as_json: Json = False,
) -> None:
    """Build the image of this version; needs no root, and is checked by one boot."""
    from host.images import build_image

    with StageProgress(quiet=as_json) as progress:
        report = build_image(Paths.default(), progress, rebuild)
    print_json(report) if as_json else printing.print_images(report)


@image_app.command("list")
def image_list(as_json: Json = False) -> None:
    """List the images in the cache."""
    from host.images import list_images

    report = list_images(Paths.default())
    print_json(report) if as_json else printing.print_images(report)


@image_app.command("prune")
def image_prune(as_json: Json = False) -> None:
    """Remove all images and templates but those of this version."""
    from host.images import prune_images

    report = prune_images(Paths.default())
    print_json(report) if as_json else printing.print_images(report)
