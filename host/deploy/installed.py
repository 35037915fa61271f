"""Earlier installations on a drive."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from firmware_agent.common.errors import DriveUnfit
from host.deploy.verb_protocol import DriveSite

_SURVEY = """\
if [ -f .csd-emu ]; then echo marker=ours; elif [ -n "$(ls -A 2>/dev/null)" ]; then echo marker=foreign; fi
for link in current previous; do echo "$link=$(readlink $link 2>/dev/null)"; done
for name in versions/*/version.json layers/*; do if [ -e "$name" ]; then echo "has=$name"; fi; done
for name in incoming/*.done; do if [ -f "$name" ]; then sed "s|^|done=|" "$name"; fi; done
if [ -f config ]; then sed "s|^|config=|" config; fi
"""


@dataclass(frozen=True)
class Survey:
    """What lies on a drive.

    Attributes:
        foreign: the folder is there and not empty, but is not ours.
        current, previous: versions in use, "" if none.
        versions, layers: that are complete.
        done: parts that were unpacked for a layer that is not complete.
        config: the lines of the drive's configuration.
        free_bytes: of the file system.
    """

    foreign: bool
    current: str
    previous: str
    versions: frozenset[str]
    layers: frozenset[str]
    done: frozenset[str]
    config: tuple[str, ...]
    free_bytes: int


def survey(site: DriveSite) -> Survey:
    """Look at what is installed on a drive; changes nothing.

    Raises:
        DriveUnfit: its folder cannot be read.
        DriveUnreachable: the connection broke.
    """
    folder = shlex.quote(str(site.layout.folder))
    # The file system is that of the nearest folder above that is there.
    command = f"""\
place={folder}; while [ ! -d "$place" ]; do place=$(dirname "$place"); done
df -Pk "$place" | sed -n '2s/^.* \\([0-9][0-9]*\\)  *[0-9]*%.*$/free=\\1/p'
if cd {folder} 2>/dev/null; then {_SURVEY}fi
"""
    lines = [line.partition("=")[::2] for line in site.shell.check(command, site.deadline, root=True).splitlines()]

    def values(key: str) -> list[str]:
        return [value for name, value in lines if name == key]

    def last(key: str) -> str:
        return values(key)[-1].rpartition("/")[2] if values(key) else ""

    has = [Path(name).parts for name in values("has")]
    free = last("free")
    if not free.isdecimal():
        raise DriveUnfit(f"drive {site.drive.name}: its free space cannot be read (df); look at it by hand")
    return Survey(
        foreign=last("marker") == "foreign",
        current=last("current"),
        previous=last("previous"),
        versions=frozenset(parts[1] for parts in has if parts[0] == "versions"),
        layers=frozenset(parts[1] for parts in has if parts[0] == "layers"),
        done=frozenset(values("done")),
        config=tuple(values("config")),
        free_bytes=int(free) * 1024,
    )
