"""Host names that a browser may use for this server; others are refused, as a defence against DNS rebinding."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

LOCAL = "localhost"


def is_our_name(authority: str, names: Collection[str]) -> bool:
    """Return whether `authority`, ``host`` or ``host:port``, can only be this server.

    An IP address can: no name led there that could lead elsewhere next time. So can ``localhost``, and what the user
    has named.

    Args:
        authority: of a Host header.
        names: in lower case, with or without a port.
    """
    try:
        parts = urlsplit(f"//{authority}")
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if host is None or parts.netloc != authority or "@" in authority:
        return False
    host = host.removesuffix(".")
    return host == LOCAL or _is_named(authority.lower(), names) or _is_address(host)


def is_our_origin(origin: str, authority: str, names: Collection[str]) -> bool:
    """Return whether a request with this Origin header comes from a page of this server.

    Such a page has the address that the request's own Host header has (`authority`), or a name that the user gave.
    """
    scheme, _, page = origin.partition("://")
    page, own = page.lower(), page.lower() == authority.lower()
    return scheme in ("http", "https") and is_our_name(page, names) and (own or _is_named(page, names))


def _is_named(authority: str, names: Collection[str]) -> bool:
    return authority in names or (urlsplit(f"//{authority}").hostname or "").removesuffix(".") in names


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
