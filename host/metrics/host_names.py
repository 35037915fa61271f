"""By which names a browser may call this server: else a web site could read it under its own name (DNS rebinding)."""

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
    return host == LOCAL or host in names or authority.lower() in names or _is_address(host)


def is_our_origin(origin: str, names: Collection[str]) -> bool:
    """Return whether a request with this Origin header comes from a page of this server."""
    scheme, _, authority = origin.partition("://")
    return scheme in ("http", "https") and is_our_name(authority, names)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
