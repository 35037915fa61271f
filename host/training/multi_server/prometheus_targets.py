"""The list of servers that one Prometheus scrapes, as its file-based service discovery reads it (`file_sd_configs`).

A target label `server` is on every series of a target, `up` included: so even a server that has never answered has a
name. Prometheus reads the file again whenever it changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit
from host.core.owned_files import replace_file

# An address or a name of DNS, then a port: what Prometheus is told to ask, and nothing else.
_PLACE = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._-]{0,252}|\[[0-9A-Fa-f:.]{2,45}\]):([0-9]{1,5})")


def render_targets(servers: Mapping[str, str]) -> str:
    """Return the file's text: `servers` is server's name -> ``host:port`` of its exporter, as Prometheus reaches it.

    Raises:
        ConfigurationError: an address is no ``host:port``, or two servers have the same.
    """
    taken: dict[str, str] = {}
    for server, address in servers.items():
        found = _PLACE.fullmatch(address)
        if found is None or not 0 < int(found[1]) < 1 << 16:
            raise ConfigurationError(
                f"server {server}: {address!r} is no address of an exporter; give host:port, as in 10.0.0.1:9464"
            )
        if address in taken:
            raise ConfigurationError(
                f"servers {taken[address]} and {server} both export on {address}; give each its own host.metrics_port"
            )
        taken[address] = server
    return json.dumps([{"targets": [servers[name]], "labels": {"server": name}} for name in servers], indent=2) + "\n"


def write_targets(path: Path, servers: Mapping[str, str]) -> None:
    """Write the file in one piece, so that Prometheus never reads half of it.

    Raises:
        ConfigurationError: see `render_targets`; nothing is written.
        EnvironmentUnfit: it cannot be written.
    """
    text = render_targets(servers)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode())
    except OSError as error:
        raise EnvironmentUnfit(
            f"{path}: Prometheus' targets cannot be written ({error.strerror}); choose another place"
        ) from error
