"""Limit on this process's open files: each drive's stream and each unauthenticated connection takes one."""

from __future__ import annotations

import contextlib
import resource

from firmware_agent.common.errors import EnvironmentUnfit

# What a host has open beside its drives' streams: libraries, run directory, sockets, pipes, and whoever is at the door.
_BESIDE = 256


def raise_open_files() -> int:
    """Raise this process's limit of open files as far as it may, and return it.

    The soft limit is often 1,024 for the sake of programs that use select(2); the hard one is what counts.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # not every system takes its own hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 30


def allow_open_files(streams: int) -> int:
    """Raise the limit of open files, and return for how many connections beside so many streams there is room.

    Raises:
        EnvironmentUnfit: there is no room for the streams.
    """
    needed, limit = streams + _BESIDE, raise_open_files()
    if limit < needed:
        raise EnvironmentUnfit(
            f"{streams} drives need about {needed} open files, and this process may have {limit} at most; raise the "
            f"limit (ulimit -Hn {needed}, or LimitNOFILE={needed} in a systemd unit), or use fewer drives"
        )
    return limit - needed
