"""Facts of a run and its drives for metrics, from configuration and hellos."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from csd_emu.config.array_file import SAMPLED, ArrayConfig
from csd_emu.profiles import get_profile
from csd_emu.util.node_names import HOST
from firmware_agent.common.frames.session_frames import Hello
from host.config.job_file import JobConfig
from host.core.device_time import COUNTED, DeviceTime, StepModel
from host.monitoring.metrics.calibrated import Calibrated
from host.monitoring.metrics.round_counting import PHASES
from host.monitoring.run_facts import DeviceFacts, RunFacts
from host.training.sync_plan import SyncPlan

# An engine that somebody adds is its own kind.
KINDS = {"qemu": "emulated", "native": "native", "remote": "real"}


def describe_run(config: ArrayConfig, job: JobConfig, server: str = "", servers: int = 0) -> RunFacts:
    """Return what stays the same in a run; `server` is the host's name among several `servers`."""
    return RunFacts(
        array=config.name,
        engine=config.engine_label,
        model=job.model,
        mode=job.mode,
        devices=tuple(device.name for device in config.list_nodes()),
        power_cap_watts=config.host.power_cap,
        server=server,
        servers=servers,
        rounds=job.rounds,
        target_accuracy=job.target.accuracy if job.target is not None else None,
    )


def describe_tables(job: JobConfig, expected: Mapping[str, StepModel], plan: SyncPlan | None) -> Calibrated:
    """Return what the calibration tables say of the run's devices.

    Args:
        job: what is trained.
        expected: device -> what its steps should cost undisturbed, of those with a table.
        plan: of a synchronous job.
    """
    micro_batches = {} if plan is None else {node: plan.micro_batch(node) for node in plan.nodes}
    return Calibrated(expected, job.epochs, micro_batches)


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
    described = []
    for device in config.list_nodes():
        if (hello := hellos.get(device.name)) is not None:
            profile, clock = get_profile(device.profile), time.clock(device.name, hello.clock)
            described.append(
                DeviceFacts(
                    device=device.name,
                    kind=HOST if device.name == HOST else KINDS.get(device.engine, device.engine),
                    profile=profile.name,
                    cores=profile.cores.value,
                    clock=clock,
                    # Wall seconds are taken as they are, modelled ones from a table.
                    scales={phase: profile.scale(phase) for phase in PHASES} if clock in (COUNTED, SAMPLED) else {},
                    hello=hello.facts,
                    hypervisor=hypervisors.get(device.name, ""),
                    core_model=config.core_model,
                )
            )
    return described
