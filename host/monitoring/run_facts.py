"""Facts of a run that stay the same, and of a drive that has said hello."""

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
        core_model: what a nanosecond of counted or modelled seconds stands for: ``instructions`` or ``cycles``.
    """

    device: str
    kind: str
    profile: str
    cores: float
    clock: str
    scales: Mapping[str, float]
    hello: Mapping[str, str]
    hypervisor: str = ""
    core_model: str = "instructions"

    @property
    def info(self) -> tuple[str, ...]:
        """Labels of `csd_device_info`."""
        machine, agent, torch = (self.hello.get(key, "") for key in ("machine", "agent", "torch"))
        what = (self.device, self.kind, self.profile, machine, f"{self.cores:g}", self.clock)
        return (*what, agent, torch, self.hypervisor, self.core_model)


@dataclass(frozen=True)
class RunFacts:
    """What stays the same in a run, and the names of its drives.

    Attributes:
        array, engine, model, mode: what trains what, and how.
        devices: all that train, the host included.
        power_cap_watts: None for none.
        server: name of the server that the host is; empty for the array's name.
        servers: how many train together, this one included; 0 of one that is alone.
        rounds: how many are planned at most.
        target_accuracy: at which the run ends early; None without one.
    """

    array: str
    engine: str
    model: str
    mode: str
    devices: tuple[str, ...]
    power_cap_watts: float | None = None
    server: str = ""
    servers: int = 0
    rounds: int = 0
    target_accuracy: float | None = None
