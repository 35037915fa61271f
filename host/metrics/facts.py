"""What metrics say of a run and its drives, from configuration and hellos."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from csd_emu.array import ArrayConfig, Device
from csd_emu.profiles import get_profile
from csd_emu.timeline import HOST
from firmware_agent.wire import Hello
from host.device_time import COUNTED, DeviceTime
from host.job import JobConfig
from host.metrics.calibrated import Calibrated
from host.metrics.counting import PHASES, DeviceFacts
from host.metrics.state import RunFacts
from host.run_request import RunRequest

KINDS = {"qemu": "emulated", "native": "native", "remote": "real"}


def describe_run(config: ArrayConfig, job: JobConfig, server: str = "") -> RunFacts:
    """Return what stays the same in a run; `server` is the host's name among several, empty for the array's."""
    devices = tuple(device.name for device in config.list_nodes())
    return RunFacts(config.name, config.engine_label, job.model, job.mode, devices, config.host.power_cap, server)


def describe_tables(request: RunRequest) -> Calibrated:
    """Return what the calibration tables say of the run's devices."""
    plan = request.sync
    micro_batches = {} if plan is None else {node: plan.micro_batch(node) for node in plan.nodes}
    return Calibrated(request.expected, request.job.epochs, micro_batches)


def describe_devices(
    config: ArrayConfig,
    time: DeviceTime,
    hellos: Mapping[str, Hello],
    hypervisors: Mapping[str, str] = MappingProxyType({}),
) -> list[DeviceFacts]:
    """Return what is known of each drive of the array that has a session.

    Args:
        config: the array.
        time: knows the clock of each drive.
        hellos: device -> what it said.
        hypervisors: device -> name of what runs it, for those that are virtual machines.
    """
    present = [(device, hellos[device.name]) for device in config.list_nodes() if device.name in hellos]
    return [
        _describe(
            *(device, HOST if device.name == HOST else KINDS[device.engine], hello),
            *(time.clock(device.name, hello.clock), hypervisors.get(device.name, "")),
        )
        for device, hello in present
    ]


def _describe(device: Device, kind: str, hello: Hello, clock: str, hypervisor: str) -> DeviceFacts:
    profile = get_profile(device.profile)
    return DeviceFacts(
        device=device.name,
        kind=kind,
        profile=profile.name,
        cores=profile.cores.value,
        clock=clock,
        # Wall seconds are taken as they are, modelled ones from a table.
        scales={phase: profile.scale(phase) for phase in PHASES} if clock == COUNTED else {},
        hello=hello.facts,
        hypervisor=hypervisor,
    )
