"""Address at which a hypervisor reaches the array's host, to which QEMU there connects each drive."""

from __future__ import annotations

import contextlib
import socket
from ipaddress import ip_address

from csd_emu.config.array_file import QEMU, ArrayConfig
from csd_emu.config.hypervisors import HypervisorSection
from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit

LOOPBACK = "127.0.0.1"
_DISCARD_PORT = 9


def advertised(section: HypervisorSection) -> str:
    """Return the address that QEMU on a hypervisor connects drives to.

    Raises:
        EnvironmentUnfit: the array file gives none, and it is not known.
    """
    if section.advertise is not None:
        return section.advertise
    return LOOPBACK if section.host is None else _own_address(section.host)


def check_listens(config: ArrayConfig) -> None:
    """Refuse an array that listens on loopback alone while drives on other machines are to dial in.

    Raises:
        ConfigurationError: it does.
    """
    if QEMU not in config.engines or not config.host.address.is_loopback:
        return
    for name, section in config.named_hypervisors.items():
        with contextlib.suppress(EnvironmentUnfit):  # said when it is that hypervisor's turn
            if not _is_loopback(address := advertised(section)):
                raise ConfigurationError(
                    f"host.address: the array listens on {config.host.address} alone, and drives on hypervisor {name} "
                    f"would be connected to {address}; set host.address to 0.0.0.0 or to that address of this machine"
                )


def _own_address(host: str) -> str:
    """Return the address from which this machine reaches another one; nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, _DISCARD_PORT))
            address = str(probe.getsockname()[0])
    except OSError as error:
        raise EnvironmentUnfit(
            f"how drives on {host} reach this machine is not known ({error}); give advertise, an address of "
            "this machine"
        ) from error
    return LOOPBACK if _is_loopback(address) else address


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False
