"""How many files this process may have open: every drive's stream is one."""

from __future__ import annotations

import resource

from firmware_agent.errors import EnvironmentUnfit

# What a host has open beside its drives' streams: libraries, run directory, sockets, pipes.
_BESIDE = 256


def allow_open_files(streams: int) -> None:
    """Raise this process's limit of open files, as far as it may, so that so many streams fit.

    The soft limit is often 1,024 for the sake of programs that use select(2); the hard one is what counts.

    Raises:
        EnvironmentUnfit: the hard limit is lower; nothing was changed.
    """
    needed = streams + _BESIDE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise EnvironmentUnfit(
            f"{streams} drives need about {needed} open files, and this process may have {hard} at most; raise the "
            f"limit (ulimit -Hn {needed}, or LimitNOFILE={needed} in a systemd unit), or use fewer drives"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
