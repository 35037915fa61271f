"""Mirrors of Debian packages: this machine's own when it runs Debian."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from firmware_agent.common.errors import EnvironmentUnfit

# Overrides the machine's own mirror, and is needed where the machine is no Debian.
# The suites are expected at MIRROR/debian and MIRROR/debian-security.
MIRROR_VARIABLE = "CSD_EMU_DEBIAN_MIRROR"
_KEYRINGS = ("debian-archive-keyring.gpg", "debian-archive-keyring.pgp")
_SECURITY_SUFFIXES = ("-security", "/updates")


@dataclass(frozen=True)
class Mirrors:
    """Addresses of the main archive and of the security archive."""

    main: str
    security: str

    def sources(self, suite: str, keyring: Path, *, updated: bool = True) -> str:
        """Return the apt sources (deb822) of one release, with its updates, or as it was last released."""
        stanzas = [(self.main, f"{suite} {suite}-updates" if updated else suite)]
        if updated:
            stanzas.append((self.security, f"{suite}-security"))
        return "\n".join(
            f"Types: deb\nURIs: {address}\nSuites: {suites}\nComponents: main\nSigned-By: {keyring}\n"
            for address, suites in stanzas
        )


@dataclass(frozen=True)
class AptSource:
    """One line of apt sources: an address, a suite and its components."""

    address: str
    suite: str
    components: frozenset[str]


def find_keyring(folder: Path = Path("/usr/share/keyrings")) -> Path:
    """Return the file with Debian's archive keys.

    Raises:
        EnvironmentUnfit: it is not there.
    """
    for name in _KEYRINGS:
        if (folder / name).is_file():
            return folder / name
    raise EnvironmentUnfit(f"{folder / _KEYRINGS[0]}: not found; install the package debian-archive-keyring")


def find_mirrors(apt_folder: Path = Path("/etc/apt")) -> Mirrors:
    """Return the mirrors: from the environment, else the machine's own if it is a Debian.

    Raises:
        EnvironmentUnfit: neither names one.
    """
    if chosen := os.environ.get(MIRROR_VARIABLE):
        return _below(chosen)
    return own_mirrors(read_sources(apt_folder) if _is_debian() else [], _codename())


def own_mirrors(sources: list[AptSource], codename: str) -> Mirrors:
    """Return the mirrors that `sources` give for Debian `codename`; security is beside main if they do not name it.

    Raises:
        EnvironmentUnfit: they name no main archive.
    """
    names = {codename, "stable", "oldstable", "testing", "unstable", "sid"}
    main = _first_main(sources, names)
    if main is None:
        raise EnvironmentUnfit(
            f"this machine's apt sources name no Debian mirror; name one in {MIRROR_VARIABLE}: "
            "an address with /debian and /debian-security below it"
        )
    security = _first_main(sources, {name + end for name in names for end in _SECURITY_SUFFIXES})
    return Mirrors(main, security or f"{main.rstrip('/').removesuffix('/debian')}/debian-security")


def _first_main(sources: list[AptSource], suites: set[str]) -> str | None:
    found = (source.address for source in sources if source.suite in suites and "main" in source.components)
    return next(found, None)


def read_sources(apt_folder: Path) -> list[AptSource]:
    """Return the enabled binary sources of a machine, both styles; files that cannot be read are left out."""
    lists = [apt_folder / "sources.list", *sorted((apt_folder / "sources.list.d").glob("*.list"))]
    stanzas = sorted((apt_folder / "sources.list.d").glob("*.sources"))
    found = [source for path in stanzas for source in parse_deb822(_text(path))]
    return found + [source for path in lists for source in parse_one_line(_text(path))]


def parse_one_line(text: str) -> Iterator[AptSource]:
    """Yield the sources of a ``sources.list``."""
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words[:1] != ["deb"]:
            continue
        words = words[1:]
        if words and words[0].startswith("["):
            end = next((index for index, word in enumerate(words) if word.endswith("]")), len(words))
            words = words[end + 1 :]
        if len(words) > 2 and _is_mirror(words[0]):
            yield AptSource(words[0].rstrip("/"), words[1].rstrip("/"), frozenset(words[2:]))


def parse_deb822(text: str) -> Iterator[AptSource]:
    """Yield the sources of a ``.sources`` file."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in "\n".join(lines).split("\n\n"):
        fields = _fields(stanza)
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() == "no":
            continue
        components = frozenset(fields.get("components", "").split())
        for address in filter(_is_mirror, fields.get("uris", "").split()):
            for suite in fields.get("suites", "").split():
                yield AptSource(address.rstrip("/"), suite.rstrip("/"), components)


def _fields(stanza: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    name = ""
    for line in stanza.splitlines():
        if line[:1] in (" ", "\t"):
            fields[name] = f"{fields.get(name, '')} {line.strip()}"
        elif ":" in line:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
    return fields


def _is_mirror(address: str) -> bool:
    return address.startswith(("http://", "https://", "file:", "mirror+"))


def _below(root: str) -> Mirrors:
    root = root.rstrip("/")
    return Mirrors(f"{root}/debian", f"{root}/debian-security")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _is_debian() -> bool:
    return _os_release().get("ID") == "debian"


def _codename() -> str:
    return _os_release().get("VERSION_CODENAME", "stable")


def _os_release() -> dict[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}
