"""Facts of a drive that has said hello."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceFacts:
    """What is known of a drive that has said hello.

    Attributes:
        device: its name.
        kind: ``emulated``, ``native`` or ``real``.
        profile: name of its profile.
        cores: of its profile.
        clock: of its compute seconds.
        scales: phase -> factor from the reference core's seconds to the profile's; empty if there is none.
        hello: the facts that the drive's agent sent.
        hypervisor: name of what runs its virtual machine; empty if it is none.
    """

    device: str
    kind: str
    profile: str
    cores: float
    clock: str
    scales: Mapping[str, float]
    hello: Mapping[str, str]
    hypervisor: str = ""

    @property
    def info(self) -> tuple[str, ...]:
        """Labels of `csd_device_info`."""
        machine, agent, torch = (self.hello.get(key, "") for key in ("machine", "agent", "torch"))
        what = (self.device, self.kind, self.profile, machine, f"{self.cores:g}", self.clock)
        return (*what, agent, torch, self.hypervisor)
