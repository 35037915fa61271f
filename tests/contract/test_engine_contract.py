"""What every engine promises, on every engine that this machine has."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from csd_emu.config.array_file import ArrayConfig
from csd_emu.config.engine_names import ENGINE
from csd_emu.config.hypervisors import HypervisorSection
from csd_emu.engines import Engine, Fault, MixedEngine, NativeEngine, make_engine
from csd_emu.engines.remote.remote_engine import RemoteEngine
from csd_emu.util.deadline import Deadline
from csd_emu.util.node_names import HOST
from csd_emu.util.paths import Paths
from firmware_agent.common.errors import BootTimeout, DeviceError, DeviceLost
from firmware_agent.common.frames.session_frames import Ready
from host.fleet.array_state import array_folder
from host.fleet.device_session import DeviceSession
from tests.contract.laboratory import Laboratory
from tests.support.fakes import JOB
from tests.support.hypervisors import hypervisors, needs_storage
from tests.support.loopback import loopback, needs_sshd
from tests.support.machines import DAEMON_OUTLIVES, prepared_qemu

pytestmark = pytest.mark.filterwarnings(DAEMON_OUTLIVES)
NAMES = (f"test-contract-{os.getpid()}", "test-neighbour")


HOST_TRAINS = " with host"
ELSEWHERE = "qemu elsewhere"
# What others need has no arrangement of its own here.
OTHERS = [name for name in ENGINE.built_in if name not in ("native", "qemu", "remote")]


def config_of(name: str, kind: str, inventory: Path | None = None) -> ArrayConfig:
    if kind == "remote":
        groups = [{"drives": ["csd-00", "csd-01"], "profile": "newport"}]
        return ArrayConfig.model_validate(
            {"name": name, "engine": kind, "inventory": str(inventory), "devices": groups}
        )
    content = {
        "name": name,
        "engine": kind.removesuffix(HOST_TRAINS),
        "host": {"trains": kind.endswith(HOST_TRAINS)},
        "devices": [{"profile": "newport", "count": 2}],
    }
    return ArrayConfig.model_validate(content)


@pytest.fixture(
    scope="module",
    params=[
        "native",
        f"native{HOST_TRAINS}",
        pytest.param("qemu", marks=pytest.mark.vm),
        pytest.param(ELSEWHERE, marks=[pytest.mark.vm, pytest.mark.long, needs_storage]),
        pytest.param("remote", marks=[needs_sshd, pytest.mark.long]),
        *OTHERS,
    ],
)
def ground(request: pytest.FixtureRequest) -> Iterator[tuple[tuple[Engine, Engine], Path, list[ArrayConfig]]]:
    """The engines of two arrays, which may be one; the folder of the arrays; and their configurations."""
    kind: str = request.param
    with contextlib.ExitStack() as stack:
        if kind == ELSEWHERE:
            (rack,) = stack.enter_context(hypervisors(1, os.environ.get("CSD_TEST_POOLS")))
            entries = [HypervisorSection(**rack.entry("rack"))]
            configs = [config_of(name, "qemu").model_copy(update={"hypervisors": entries}) for name in NAMES]
            placed = stack.enter_context(contextlib.closing(prepared_qemu(configs[0])))
            yield (placed, placed), Paths.default().arrays, configs
            assert rack.files("csd.") == []
            return
        if kind == "qemu" or kind.startswith("qemu"):
            engine: Engine = stack.enter_context(contextlib.closing(prepared_qemu(config_of(NAMES[0], kind))))
            yield (engine, engine), Paths.default().arrays, [config_of(name, kind) for name in NAMES]
            return
        folder = Path(tempfile.mkdtemp(prefix="csd-"))
        stack.callback(shutil.rmtree, folder)
        if kind == "remote":  # a drive is lent to one array at a time: each has its own
            server = stack.enter_context(loopback(folder))
            inventories = [server.inventory(["csd-00", "csd-01"], prefix) for prefix in ("", "-n")]
            configs = [config_of(name, kind, path) for name, path in zip(NAMES, inventories, strict=True)]
            first, second = (
                stack.enter_context(contextlib.closing(RemoteEngine(config, "here"))) for config in configs
            )
            yield (first, second), folder / "arrays", configs
            return
        if kind in OTHERS:
            configs = [config_of(name, kind) for name in NAMES]
            made = [make_engine(config, Paths(folder, folder, folder)) for config in configs]
            one, other = (stack.enter_context(contextlib.closing(engine)) for engine in made)
            yield (one, other), Paths(folder, folder, folder).arrays, configs
            return
        native = stack.enter_context(contextlib.closing(NativeEngine(folder)))
        engine = MixedEngine({"native": native}) if kind.endswith(HOST_TRAINS) else native
        yield (engine, engine), folder, [config_of(name, kind) for name in NAMES]


@pytest.fixture
def laboratories(
    ground: tuple[tuple[Engine, Engine], Path, list[ArrayConfig]],
) -> Iterator[tuple[Laboratory, Laboratory]]:
    """Two arrays on one engine; leftovers of an earlier, killed test are swept first."""
    engines, arrays, configs = ground
    with contextlib.ExitStack() as stack:
        for engine, config in zip(engines, configs, strict=True):
            folder = stack.enter_context(array_folder(arrays, config.name))
            engine.sweep(config.name)
            shutil.rmtree(folder / "devices", ignore_errors=True)
        pair = [
            Laboratory(engine, config, arrays / config.name) for engine, config in zip(engines, configs, strict=True)
        ]
        for laboratory in pair:
            stack.callback(laboratory.clear)
        yield pair[0], pair[1]


@pytest.fixture
def lab(laboratories: tuple[Laboratory, Laboratory]) -> Laboratory:
    return laboratories[0]


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - what is waited for is outside of the loop
            await asyncio.sleep(0.02)


async def answers(session: DeviceSession, seconds: float) -> None:
    """Have the device build a model."""
    await session.send(JOB)
    assert isinstance(await session.expect(Ready, Deadline(seconds)), Ready)


async def test_the_life_of_two_devices(lab: Laboratory) -> None:
    engine, name = lab.engine, lab.config.name
    assert engine.list_devices(name) == []
    async with lab.fleet() as fleet:
        handles = [await asyncio.to_thread(engine.start, lab.plan(number, fleet.port)) for number in (0, 1)]
        for handle in handles:
            await lab.ready(handle, fleet)
        assert engine.list_devices(name) == ["csd-00", "csd-01"]
        assert all(engine.alive(handle) for handle in handles)
        for session in fleet.sessions().values():
            assert session.hello.clock == lab.around(0).clock
            await answers(session, 120)

        # Frozen: alive, silent; thawed: it answers what it was asked.
        (first, second), session = handles, fleet.session("csd-00")  # type: ignore[assignment]
        assert session is not None
        await asyncio.to_thread(engine.inject, first, Fault.FREEZE)
        await session.send(JOB)
        receiving = asyncio.ensure_future(session.expect(Ready, Deadline(120)))
        await asyncio.wait({receiving}, timeout=1.0)
        assert not receiving.done()
        assert engine.alive(first)
        await asyncio.to_thread(engine.inject, first, Fault.THAW)
        assert isinstance(await receiving, Ready)

        # Whoever asks by its plan finds the same device; what is done to it twice is done once.
        assert engine.find(first.plan) == first
        assert engine.find(lab.plan(1, fleet.port)) == second
        for fault in (Fault.THAW, Fault.FREEZE, Fault.FREEZE, Fault.THAW):
            await asyncio.to_thread(engine.inject, first, fault)
        if Fault.CUT in engine.faults:
            for fault in (Fault.CUT, Fault.CUT, Fault.HEAL, Fault.HEAL):
                await asyncio.to_thread(engine.inject, first, fault)
        else:
            with pytest.raises(DeviceError, match="cut cannot be done to a process"):
                engine.inject(first, Fault.CUT)
        await answers(session, 120)

        # Killed: gone, its session too, the other untouched; what cannot be done to it says so.
        await asyncio.to_thread(engine.inject, first, Fault.KILL)
        assert not engine.alive(first)
        await until(lambda: fleet.session("csd-00") is None)
        assert engine.list_devices(name) == ["csd-01"]
        assert engine.find(first.plan) is None
        assert engine.alive(second)
        with pytest.raises(DeviceError, match="csd-00 does not run"):
            engine.inject(first, Fault.FREEZE)
        engine.stop(first)

        # Back as a new incarnation; stopping twice is a success.
        again = await asyncio.to_thread(engine.start, lab.plan(0, fleet.port, incarnation=2))
        await lab.ready(again, fleet)
        session = fleet.session("csd-00")  # type: ignore[assignment]
        assert session is not None
        assert session.hello.incarnation == 2
        for handle in (again, second, again):
            await asyncio.to_thread(engine.stop, handle)
            assert not engine.alive(handle)
        assert engine.list_devices(name) == []


async def test_a_sweep_ends_its_own_array_alone_and_a_frozen_device_too(
    laboratories: tuple[Laboratory, Laboratory],
) -> None:
    lab, neighbour = laboratories
    async with lab.fleet() as fleet, neighbour.fleet() as other_fleet:
        mine = await asyncio.to_thread(lab.engine.start, lab.plan(0, fleet.port))
        theirs = await asyncio.to_thread(neighbour.engine.start, neighbour.plan(0, other_fleet.port))
        await lab.ready(mine, fleet)
        await neighbour.ready(theirs, other_fleet)
        lab.engine.inject(mine, Fault.FREEZE)
        assert await asyncio.to_thread(lab.engine.sweep, lab.config.name) == ["csd-00"]
        assert not lab.engine.alive(mine)
        assert neighbour.engine.alive(theirs)
        assert lab.engine.sweep(lab.config.name) == []
        assert neighbour.engine.list_devices(neighbour.config.name) == ["csd-00"]
        assert await asyncio.to_thread(neighbour.engine.sweep, neighbour.config.name) == ["csd-00"]


async def test_a_corrupted_shard_is_named_in_the_devices_last_words(lab: Laboratory) -> None:
    lab.corrupt_shard(0)
    async with lab.fleet() as fleet:
        handle = await asyncio.to_thread(lab.engine.start, lab.plan(0, fleet.port))
        with pytest.raises(DeviceLost, match=r"csd-00(?s:.*)image\.npy does not match its sha256"):
            await lab.ready(handle, fleet)
        assert fleet.sessions() == {}


async def test_a_device_that_is_late_or_ends_before_its_hello_is_an_error_with_its_last_words(lab: Laboratory) -> None:
    async with lab.fleet() as fleet:
        handle = await asyncio.to_thread(lab.engine.start, lab.plan(0, 1))  # nobody listens on port 1
        with pytest.raises(BootTimeout, match="csd-00 did not say hello in 0 s; its last words"):
            await lab.engine.wait_ready(handle, fleet.joined("csd-00"), Deadline(0.1))
        waiting = asyncio.ensure_future(lab.ready(handle, fleet))
        await asyncio.sleep(0)
        await asyncio.to_thread(lab.engine.stop, handle)
        with pytest.raises(DeviceLost, match="csd-00 ended before its agent said hello; its last words"):
            await waiting


@pytest.mark.parametrize(
    "ground",
    [f"native{HOST_TRAINS}", pytest.param(f"qemu{HOST_TRAINS}", marks=[pytest.mark.vm, pytest.mark.long])],
    indirect=True,
)
async def test_the_host_that_trains_is_a_device_beside_its_drives(lab: Laboratory) -> None:
    engine, name = lab.engine, lab.config.name
    assert [device.name for device in lab.devices] == ["csd-00", "csd-01", HOST]
    assert lab.around(2).clock == "wall"
    async with lab.fleet() as fleet:
        drive, host = [await asyncio.to_thread(engine.start, lab.plan(number, fleet.port)) for number in (0, 2)]
        await lab.ready(drive, fleet)
        await lab.ready(host, fleet)
        assert engine.list_devices(name) == ["csd-00", HOST]
        assert name in engine.list_arrays()
        assert engine.find(host.plan) == host
        assert engine.alive(host)
        session = fleet.session(HOST)
        assert session is not None
        assert session.hello.clock == "wall"
        await answers(session, 120)

        await asyncio.to_thread(engine.inject, host, Fault.KILL)
        assert not engine.alive(host)
        assert engine.find(host.plan) is None
        assert engine.list_devices(name) == ["csd-00"]
        assert engine.alive(drive)
        again = await asyncio.to_thread(engine.start, lab.plan(2, fleet.port, incarnation=2))
        await lab.ready(again, fleet)
        assert engine.list_devices(name) == ["csd-00", HOST]
        assert await asyncio.to_thread(engine.sweep, name) == ["csd-00", HOST]
        assert not engine.alive(again)
        assert engine.list_devices(name) == []
        assert name not in engine.list_arrays()
