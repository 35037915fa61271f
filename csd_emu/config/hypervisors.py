"""Hypervisors in an array file: where libvirt answers, what each may be given, and what it is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import Discriminator, Field, Tag

from csd_emu.util.config_files import Bytes, Config

SESSION_URI = "qemu:///session"
# How devices are placed on several hypervisors.
Spread = Literal["fill", "even"]
_LOCAL = "local"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class HypervisorSection(Config):
    """A hypervisor with more than its URI.

    Attributes:
        uri: libvirt's, such as ``qemu+ssh://user@rack-1/session``.
        name: what messages, plans and metrics call it; null: the URI's host.
        cores: how many drives may run there at a time, a core each; null: its cores, and more when all are full.
        memory: what the drives may take there; null: what is free.
        disk: what image, template and drives may take there; null: what is free.
        pool_path: folder there for the files; null: ``csd-emu`` in that of its storage pool ``default``.
        advertise: address of this machine that its drives dial; null: the one from which this machine reaches it.
    """

    uri: str
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")] | None = None
    cores: int | None = Field(default=None, ge=1)
    memory: Bytes | None = None
    disk: Bytes | None = None
    pool_path: str | None = None
    advertise: str | None = None

    def rules(self) -> Mapping[str, object]:
        """Return the rules of limits and paths."""
        return {
            **{
                f"{key} must be more than 0 B; leave it out for what is free there": size is not None and size <= 0
                for key, size in {"memory": self.memory, "disk": self.disk}.items()
            },
            f"pool_path: {self.pool_path!r} must be an absolute path on the hypervisor": (
                self.pool_path is not None and not self.pool_path.startswith("/")
            ),
            f"pool_path and advertise: {SESSION_URI} uses files of this machine; leave them out": (
                self.uri == SESSION_URI and (self.pool_path or self.advertise)
            ),
        }

    @property
    def local(self) -> bool:
        """Whether csd-emu's own daemon is meant, which is given files of this machine."""
        return self.uri == SESSION_URI

    @property
    def unlimited(self) -> bool:
        """Whether the file sets it no limit."""
        return self.cores is self.memory is self.disk is None

    @property
    def host(self) -> str | None:
        """The other machine that it runs on; None on this one."""
        host = _split(self.uri).hostname
        return None if host in (None, *_LOOPBACK) else host

    @property
    def system(self) -> bool:
        """Whether it is the machine's own libvirt, which has root's rights, rather than a user's."""
        return _split(self.uri).path == "/system"


# An entry of `hypervisors:`: a URI, or a mapping.
HypervisorEntry = Annotated[
    Annotated[str, Tag("uri")] | Annotated[HypervisorSection, Tag(HypervisorSection.__name__)],
    Discriminator(lambda value: "uri" if isinstance(value, str) else HypervisorSection.__name__),
]


def name_hypervisors(entries: Sequence[str | HypervisorSection]) -> dict[str, HypervisorSection]:
    """Return name -> hypervisor, in the order of the file.

    One without a name has its host's, ``local`` on this machine; of several with one name the later get a number.

    Raises:
        ValueError: two are given the same name.
    """
    sections = [HypervisorSection(uri=each) if isinstance(each, str) else each for each in entries]
    given = [each.name for each in sections if each.name is not None]
    if twice := sorted({name for name in given if given.count(name) > 1}):
        raise ValueError(f"hypervisors: {', '.join(twice)} is there twice; give every one a name of its own")
    named: dict[str, HypervisorSection] = {}
    for section in sections:
        named[section.name or _free_name(section.host or _LOCAL, {*named, *given})] = section
    return named


def _free_name(wanted: str, taken: set[str]) -> str:
    if wanted not in taken:
        return wanted
    return next(name for number in range(2, len(taken) + 3) if (name := f"{wanted}-{number}") not in taken)


def _split(uri: str) -> SplitResult:
    try:
        return urlsplit(uri)
    except ValueError:  # libvirt will say what is wrong with it
        return urlsplit("")
