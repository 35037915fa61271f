"""Arrays come up and go down here, whatever engine they run on."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import os
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path

import msgspec

from csd_emu.config.array_file import QEMU, REMOTE, ArrayConfig, Device
from csd_emu.engines import DevicePlan, Engine, Handle, Surroundings, make_engine
from csd_emu.engines.engine_protocol import HypervisorLost
from csd_emu.util.config_files import parse_config
from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from firmware_agent.common.errors import BootTimeout, ConfigurationError
from firmware_agent.common.handover import IDENTITY_FILE, SHARD_FILE
from firmware_agent.common.identity import Identity, write_identity
from host.config.job_file import DataSection
from host.core.datasets import Dataset, load_dataset
from host.core.device_time import COUNTED, WALL
from host.core.interrupts import all_or_none
from host.core.records import OnEvent
from host.fleet.admission import ExpectedDevice
from host.fleet.array_state import STATE_FILE, ArrayState, DeviceState, devices_held, empty_folder
from host.fleet.certificates import Authority, Credential, HostKeys, lent_uri
from host.fleet.enrolment_authority import LENT_LIFETIME, CertificateCheck, deployment_folder, open_authority
from host.fleet.fleet import Fleet
from host.fleet.shards import ShardAssignment, ShardRecord, WantedRecords, write_shards

log = logging.getLogger(__name__)

ENTROPY_BYTES = 64
FIRST_INCARNATION = 1
# Folders of an array.
_KEYS, DEVICES = "keys", "devices"
# Until an agent says hello: from a drive's start, which an emulated or a busy one takes minutes for; if it is up.
_BOOT_SECONDS, _ATTACH_SECONDS = 300.0, 120.0


@dataclass(frozen=True)
class ArrayRequest:
    """What to bring up: the array, and the data that its drives shall hold; `kept` if it shall stay up.

    `run` will tag its devices: whoever has the request knows them by it. Records are dealt out `among` the drives of
    all servers, if there are several; this one's get theirs. `dealt` says who gets which, if that was decided already,
    and `dataset` is what `data` names, if it was loaded already: code of the user's is run once.
    """

    config: ArrayConfig
    data: DataSection
    seed: int
    kept: bool = False
    run: str = field(default_factory=lambda: secrets.token_hex(4))
    among: tuple[Device, ...] | None = None
    dealt: ShardAssignment | None = field(default=None, compare=False)
    dataset: Dataset | None = field(default=None, compare=False)

    @property
    def own_sha256(self) -> str:
        """Hash of who gets which records, where code of the user's decides that; else empty: `data` and `seed` do."""
        return "" if self.dealt is None or self.data.partition.function is None else self.dealt.sha256


@dataclass(frozen=True)
class StartedArray:
    """An array whose devices have said hello, and the fleet that they said it to.

    `lost` are those that their hypervisors cost it, with what was wrong; the other hypervisors' devices go on.
    """

    state: ArrayState
    fleet: Fleet
    handles: list[Handle]
    times: StartTimes
    lost: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StartTimes:
    """Wall seconds of bringing devices up: each device's own, from its start to its hello, and the whole."""

    device_seconds: dict[str, float]
    array_seconds: float


async def start_array(
    request: ArrayRequest, folder: Path, engine: Engine, fleet_box: contextlib.AsyncExitStack, on_event: OnEvent
) -> StartedArray:
    """Start every device of a prepared engine and wait for all hellos, but of those whose hypervisor fails.

    Args:
        request: what to bring up.
        folder: the array's own, empty, locked folder.
        engine: prepared.
        fleet_box: the fleet that listens is entered here; leave it to stop listening.
        on_event: told who joins and leaves.

    Raises:
        CsdError: a device did not come up; the caller sweeps.
    """
    devices, run = request.config.list_nodes(), request.run
    data = request.data
    dataset = (
        await asyncio.to_thread(load_dataset, data.source, request.seed, data.input)
        if request.dataset is None
        else request.dataset
    )
    shards = devices, data, request.seed, folder / DEVICES, dataset, request.among, request.dealt
    records = await asyncio.to_thread(write_shards, *shards)
    deployment = deployment_folder(request.config)
    authority = await asyncio.to_thread(_authority, request.config, deployment)
    keys = HostKeys(authority.ca_pem, authority.issue_host())
    keys.save(folder / _KEYS)
    first = first_incarnations(devices)
    expected = _expected(engine, devices, records, first, WantedRecords.of(dataset))
    place, behind = request.config.host, engine.surroundings(devices[0]).listen_address
    address = place.address if behind is None else IPv4Address(behind)
    certificates = CertificateCheck.of(request.config, run, deployment and deployment[1])
    listening = Fleet(expected, keys, place.port or 0, on_event, address, certificates)
    fleet = await fleet_box.enter_async_context(listening)
    state = msgspec.structs.replace(_state(request, run, fleet.port, devices, records, first), listen_address=behind)
    state.save(folder)
    plans = [
        _plan(
            *(request.config.name, run, device, record),
            _identity(authority, device, request, engine.surroundings(device), fleet.port, first[device.name]),
        )
        for device, record in zip(devices, records, strict=True)
    ]
    handles, times, lost = await _start_devices(engine, fleet, plans)
    if any(device.data is not None for device in devices):
        state = state.with_holdings({name: session.hello for name, session in fleet.sessions().items()})
        state.save(folder)
    return StartedArray(state, fleet, handles, times, lost)


def _expected(
    engine: Engine,
    devices: Sequence[Device],
    records: Sequence[ShardRecord],
    first: Mapping[str, int],
    wanted: WantedRecords,
) -> dict[str, ExpectedDevice]:
    """Return what each device must say in its hello; one that has the records already, that they are `wanted`."""
    return {
        d.name: ExpectedDevice(
            first[d.name],
            r.manifest_sha256,
            None if d.data is None else wanted,
            r.samples if r.manifest_sha256 else None,
            engine.surroundings(d).clock,
        )
        for d, r in zip(devices, records, strict=True)
    }


@contextlib.asynccontextmanager
async def attach_array(
    state: ArrayState, running: Sequence[str], folder: Path, on_event: OnEvent
) -> AsyncIterator[Fleet]:
    """Listen for an array that is up, and wait until the agents of its `running` devices have dialled in.

    Raises:
        EnvironmentUnfit: its port is in use.
        BootTimeout: a device did not dial in.
    """
    keys = HostKeys.load(folder / _KEYS)
    config = parse_config(state.config, ArrayConfig, STATE_FILE)
    deployment = deployment_folder(config)
    certificates = CertificateCheck.of(config, state.run, deployment and deployment[1])
    engines = {node.name: node.engine for node in config.list_nodes()}
    expected = {
        d.name: ExpectedDevice(
            d.incarnation,
            d.manifest_sha256,
            samples=d.samples if d.manifest_sha256 else None,
            clock=COUNTED if engines[d.name] == QEMU else WALL,
        )
        for d in state.devices
    }
    async with Fleet(expected, keys, state.port, on_event, state.address, certificates) as fleet:
        try:
            async with asyncio.timeout(_ATTACH_SECONDS):
                await asyncio.gather(*(fleet.joined(device) for device in running))
        except TimeoutError:
            missing = ", ".join(device for device in running if fleet.session(device) is None)
            raise BootTimeout(
                f"array {state.config['name']!r}: {missing} did not dial in within {_ATTACH_SECONDS:.0f} s; thaw or "
                "heal with csd-emu inject what is frozen or cut off, or run csd-emu down and up again"
            ) from None
        yield fleet


def list_running(state: ArrayState, paths: Paths) -> list[str]:
    """Return the devices of an array that still exist, on the engine that it was given when it was brought up.

    What a killed run left is ended here.
    """
    config = parse_config(state.config, ArrayConfig, STATE_FILE)
    with contextlib.closing(make_engine(config, paths)) as engine:
        if not state.kept:
            engine.sweep(config.name)
        return engine.list_devices(config.name)


def fetch_consoles(state: ArrayState, folder: Path, paths: Paths) -> None:
    """Have what the drives of an array that is up said last in the files beside their shards.

    Raises:
        CsdError: the engine cannot be asked.
    """
    config = parse_config(state.config, ArrayConfig, STATE_FILE)
    with contextlib.closing(make_engine(config, paths)) as engine:
        for device in config.list_devices():
            own = folder / DEVICES / device.name
            plan = DevicePlan(config.name, state.run, device, own, own / SHARD_FILE, own / IDENTITY_FILE)
            if (handle := engine.find(plan)) is not None:
                engine.alive(handle)  # fetches its console on the way


def check_same(request: ArrayRequest, state: ArrayState) -> None:
    """Refuse an array that is up with another configuration, data or seed than is asked for.

    Raises:
        ConfigurationError: it is.
    """
    wanted = {
        "configuration": (request.config.model_dump(mode="json"), state.config),
        "data section": (request.data.model_dump(mode="json"), state.data),
        "deal of records by data.partition.function": (request.own_sha256, state.own_sha256),
        "seed": (request.seed, state.seed),
    }
    for what, (asked, up) in wanted.items():
        if asked != up:
            name = request.config.name
            raise ConfigurationError(
                f"array {name!r} is up with another {what} than this run needs; csd-emu down {name}, then run again"
            )


def clear_array(engine: Engine, name: str, folder: Path) -> list[str]:
    """End all devices of the array and empty its folder; return the names of the devices ended."""
    with devices_held(folder / DEVICES):
        swept = engine.sweep(name)
        empty_folder(folder)
    return swept


async def _start_devices(
    engine: Engine, fleet: Fleet, plans: list[DevicePlan]
) -> tuple[list[Handle], StartTimes, dict[str, str]]:
    """Start the devices; return those that came up, and why the others did not, which their hypervisors have lost.

    Raises:
        CsdError: a device did not come up, or none did.
    """
    begin = time.monotonic()
    # More starts at once than cores would only get in each other's way; each hypervisor has cores of its own.
    turns = defaultdict[str | None, asyncio.Semaphore](lambda: asyncio.Semaphore(os.cpu_count() or 1))

    async def start(plan: DevicePlan) -> tuple[Handle, float] | HypervisorLost:
        try:
            async with turns[engine.hypervisor_of(plan.device)]:
                own = time.monotonic()
                handle = await asyncio.to_thread(engine.start, plan)
                # What starting takes, such as sending a large shard, does not count.
                await engine.wait_ready(handle, fleet.joined(plan.device.name), Deadline(_BOOT_SECONDS))
                return handle, time.monotonic() - own
        except HypervisorLost as error:
            log.warning("%s", error)
            return error

    # A thread that is starting a device cannot be cancelled: it is let end, so that the sweep sees all there is.
    results = await all_or_none(start(plan) for plan in plans)
    started = [result for result in results if not isinstance(result, HypervisorLost)]
    if (errors := [result for result in results if isinstance(result, HypervisorLost)]) and not started:
        raise errors[0]
    times = {handle.plan.device.name: seconds for handle, seconds in started}
    lost = {plan.device.name: str(error) for plan, error in zip(plans, results, strict=True) if error in errors}
    return [handle for handle, _ in started], StartTimes(times, time.monotonic() - begin), lost


def _authority(config: ArrayConfig, deployment: tuple[str, Path] | None) -> Authority:
    """Return who issues the certificates of an array: with real drives in it the one that has enrolled those.

    Host and drives of an array trust one authority, so its other devices get their certificates from it too.
    """
    if deployment is None:
        return Authority(config.name)
    name, folder = deployment
    return open_authority(folder, name)


def first_incarnations(devices: Sequence[Device]) -> dict[str, int]:
    """Return the incarnation with which each device of an array begins.

    A real drive keeps its certificate beyond an `up`: there a later one must not take an earlier one's agent for its
    own, so the seconds of the date go into it.
    """
    return {each.name: int(time.time()) if each.engine == REMOTE else FIRST_INCARNATION for each in devices}


def _identity(
    authority: Authority, device: Device, request: ArrayRequest, around: Surroundings, port: int, incarnation: int
) -> Identity:
    # A real drive has a certificate of its own, and no key crosses the network for it.
    own = device.engine == REMOTE
    lent = lent_uri(request.config.name, request.run)
    # Of an `up` certificates end some day; an authority that ends with the array has no need of that.
    until = None if request.config.inventory is None else datetime.datetime.now(datetime.UTC) + LENT_LIFETIME
    credential = Credential("", "") if own else authority.issue_device(device.name, until, lent)
    return Identity(
        array=request.config.name,
        device=device.name,
        incarnation=incarnation,
        host_address=f"{around.host_address}:{port}",
        clock=around.clock,
        unix_seconds=time.time(),
        entropy=secrets.token_bytes(ENTROPY_BYTES),
        ca_pem=authority.ca_pem,
        certificate_pem=credential.certificate_pem,
        key_pem=credential.key_pem,
        data=device.data or "",
    )


def _plan(array: str, run: str, device: Device, record: ShardRecord, identity: Identity) -> DevicePlan:
    folder = record.path.parent
    write_identity(folder / IDENTITY_FILE, identity)
    return DevicePlan(array, run, device, folder, record.path, folder / IDENTITY_FILE)


def _state(
    request: ArrayRequest,
    run: str,
    port: int,
    devices: list[Device],
    records: list[ShardRecord],
    first: Mapping[str, int],
) -> ArrayState:
    entries = tuple(
        DeviceState(d.name, d.number, d.profile, first[d.name], r.manifest_sha256, r.samples)
        for d, r in zip(devices, records, strict=True)
    )
    config, data = request.config.model_dump(mode="json"), request.data.model_dump(mode="json")
    return ArrayState(config, data, request.seed, run, request.kept, port, entries, own_sha256=request.own_sha256)
