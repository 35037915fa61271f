"""The qemu engine over several hypervisors: one that fails costs its own devices."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("libvirt")

from csd_emu.config.array_file import ArrayConfig
from csd_emu.config.hypervisors import HypervisorSection
from csd_emu.engines import DevicePlan, Handle
from csd_emu.engines.engine_protocol import HypervisorLost
from csd_emu.engines.qemu.connection import NoAnswer, within
from csd_emu.engines.qemu.hypervisor import Hypervisor
from csd_emu.engines.qemu.hypervisor_set import Sites
from csd_emu.engines.qemu.qemu_engine import QemuEngine
from csd_emu.engines.qemu.vm_scheduling import Offer
from csd_emu.image import Image
from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress, Silent
from firmware_agent.common.errors import CsdError, DeviceError, EnvironmentUnfit
from host.fleet import lifecycle
from host.fleet.fleet import Fleet
from tests.support.fakes import FakeEngine


class FakeSite(Hypervisor):
    """A hypervisor whose machines are names in a set; `broken` is the name of the call that fails."""

    def __init__(self, name: str, cores: int = 2) -> None:
        super().__init__(name, HypervisorSection(uri=f"qemu+ssh://{name}/session", cores=cores), "")
        self.cores, self.running, self.broken = cores, dict[str, DevicePlan](), ""
        self.prepared = 0

    def connection(self) -> Any:
        raise NotImplementedError

    def free(self) -> Offer:
        self._maybe("free")
        return Offer(self.cores, None, None, cores_bind=True)

    def prepare(self, image: Image, progress: Progress) -> None:
        self._maybe("prepare")
        self.prepared += 1

    def start(self, plan: DevicePlan) -> Handle:
        self._maybe("start")
        self.running[plan.device.name] = plan
        return Handle(plan, self.domain_name(plan))

    def domain_name(self, plan: DevicePlan) -> str:
        return f"csd-{plan.device.name}"

    def domain(self, plan: DevicePlan) -> Any:
        self._maybe("domain")
        return self if plan.device.name in self.running else None

    def fetch_console(self, plan: DevicePlan, domain: Any) -> None:
        self._maybe("fetch_console")

    def devices(self, array: str) -> list[str]:
        self._maybe("devices")
        return list(self.running)

    def arrays(self) -> set[str]:
        self._maybe("arrays")
        return {plan.array for plan in self.running.values()}

    def sweep(self, array: str) -> list[str]:
        self._maybe("sweep")
        swept, self.running = list(self.running), {}
        return swept

    def close(self) -> None:
        self.broken = "closed"

    def _maybe(self, call: str) -> None:
        if self.broken in (call, "all"):
            raise EnvironmentUnfit(f"{self.name} is gone")


class FakeImages:
    def ensure(self, progress: Progress) -> Image:
        return Image("0123", Path("/nonexistent"), "")


Make = Callable[..., tuple[QemuEngine, list[FakeSite]]]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(*cores: int, drives: int = 4, spread: str = "even") -> tuple[QemuEngine, list[FakeSite]]:
        sites = [FakeSite(f"rack-{number}", each) for number, each in enumerate(cores)]
        entries = [{"uri": site.section.uri, "advertise": "127.0.0.1"} for site in sites]
        content = {"name": "lab", "hypervisors": entries, "spread": spread}
        config = ArrayConfig.model_validate(content | {"devices": [{"profile": "newport", "count": drives}]})
        monkeypatch.setattr(Sites, "make", classmethod(lambda cls, *_: cls({site.name: site for site in sites})))
        engine = QemuEngine(config, Paths(tmp_path, tmp_path, tmp_path))
        engine._images = cast(Any, FakeImages())
        return engine, sites

    return make


def plans(engine: QemuEngine) -> list[DevicePlan]:
    folder = Path("/nonexistent")
    return [DevicePlan("lab", "run", device, folder, folder, folder) for device in engine._config.list_devices()]


def test_devices_are_placed_and_known_by_their_hypervisor(make: Make) -> None:
    engine, sites = make(2, 2)
    engine.prepare(Silent())
    for plan in plans(engine):
        engine.start(plan)
    assert [sorted(site.running) for site in sites] == [["csd-00", "csd-02"], ["csd-01", "csd-03"]]
    assert [engine.hypervisor_of(plan.device) for plan in plans(engine)] == ["rack-0", "rack-1"] * 2
    assert engine.list_devices("lab") == ["csd-00", "csd-01", "csd-02", "csd-03"]


def test_another_process_finds_where_devices_run(make: Make) -> None:
    engine, sites = make(2, 2)
    plan = plans(engine)[0]
    sites[1].start(plan)
    assert engine.hypervisor_of(plan.device) == "rack-1"
    assert engine.hypervisor_of(plans(engine)[1].device) is None
    found = engine.find(plan)
    assert found is not None
    assert engine.alive(found)


def test_one_that_is_gone_beforehand_gives_its_devices_to_those_with_room(make: Make) -> None:
    engine, sites = make(2, 2, 3)
    sites[1].broken = "all"
    engine.prepare(Silent())
    assert [engine.hypervisor_of(plan.device) for plan in plans(engine)] == ["rack-0", "rack-2", "rack-2", "rack-0"]


def test_one_that_is_gone_beforehand_costs_what_has_no_room_elsewhere(make: Make) -> None:
    engine, sites = make(2, 2)
    sites[1].broken = "all"
    engine.prepare(Silent())
    for plan in plans(engine)[:2]:
        engine.start(plan)
    for plan in plans(engine)[2:]:
        with pytest.raises(HypervisorLost, match=r"rack-1 cannot be used \(rack-1 is gone\).*rack-0 has 2 cores for 2"):
            engine.start(plan)
        assert engine.hypervisor_of(plan.device) is None


@pytest.mark.parametrize("call", ["prepare", "start"])
def test_one_that_fails_later_costs_its_own_devices(make: Make, call: str) -> None:
    engine, sites = make(2, 2)
    sites[0].broken = call
    engine.prepare(Silent())
    for lost, kept in zip(plans(engine)[::2], plans(engine)[1::2], strict=True):
        with pytest.raises(HypervisorLost, match="rack-0 is gone"):
            engine.start(lost)
        engine.start(kept)
    assert list(sites[1].running) == ["csd-01", "csd-03"]


def test_when_it_is_there_again_a_device_is_started_where_there_is_room_and_the_others_stay(make: Make) -> None:
    engine, sites = make(2, 2)
    first, *rest = plans(engine)
    for plan in rest[:2]:
        sites[1].start(plan)
    engine.prepare(Silent())
    engine.start(first)
    assert (list(sites[0].running), list(sites[1].running)) == (["csd-00"], ["csd-01", "csd-02"])


@pytest.mark.parametrize("call", ["free", "prepare"])
def test_all_of_them_failing_is_an_error_that_names_each(make: Make, call: str) -> None:
    engine, sites = make(2, 2)
    for site in sites:
        site.broken = call
    with pytest.raises(EnvironmentUnfit, match="hypervisor rack-0: rack-0 is gone\nhypervisor rack-1: rack-1 is gone"):
        engine.prepare(Silent())


def test_too_many_devices_are_refused_before_any_hypervisor_is_touched(make: Make) -> None:
    engine, sites = make(2, 1)
    with pytest.raises(
        EnvironmentUnfit, match="1 of 4 drives have no room: rack-0 has 2 cores for 2 drives, 1 too few"
    ):
        engine.prepare(Silent())
    with pytest.raises(EnvironmentUnfit, match="1 of 4 drives have no room"):
        engine.plan()
    assert [site.prepared for site in sites] == [0, 0]


def test_a_plan_says_who_cannot_be_used_and_touches_none(make: Make) -> None:
    engine, sites = make(2, 3, 1, spread="fill")
    sites[2].broken = "all"
    plan = engine.plan()
    assert [site.devices for site in plan.hypervisors] == [["csd-00", "csd-01"], ["csd-02", "csd-03"], []]
    assert [site.problem for site in plan.hypervisors] == ["", "", "rack-2 is gone"]
    assert plan.unplaced == {}
    assert [site.prepared for site in sites] == [0, 0, 0]


def test_listing_and_sweeping_go_on_without_one_of_them_and_not_without_any(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    engine, sites = make(2, 2)
    engine.prepare(Silent())
    for plan in plans(engine):
        engine.start(plan)
    sites[0].broken = "all"
    assert engine.list_devices("lab") == ["csd-01", "csd-03"]
    assert engine.list_devices("lab") == ["csd-01", "csd-03"]
    assert engine.sweep("lab") == ["csd-01", "csd-03"]
    assert engine.list_arrays() == []
    assert caplog.text.count("hypervisor rack-0: rack-0 is gone") == 1
    sites[1].broken = "all"
    for call in (engine.list_devices, engine.sweep):
        with pytest.raises(EnvironmentUnfit, match="rack-1 is gone"):
            call("lab")


def test_an_only_hypervisor_is_no_reason_to_go_on_without_it(make: Make) -> None:
    engine, (site,) = make(4)
    engine._where = {plan.device.name: site.name for plan in plans(engine)}
    site.broken = "start"
    with pytest.raises(EnvironmentUnfit, match="rack-0 is gone"):
        engine.start(plans(engine)[0])


async def test_one_that_is_gone_while_a_device_boots_costs_that_device(make: Make) -> None:
    engine, sites = make(2, 2)
    engine.prepare(Silent())
    handle = await asyncio.to_thread(engine.start, plans(engine)[0])
    sites[0].broken = "all"
    hello: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with pytest.raises(HypervisorLost, match="csd-00, on hypervisor rack-0: rack-0 is gone"):
        await engine.wait_ready(handle, hello, Deadline(60.0))


def test_a_call_that_never_returns_is_given_up() -> None:
    stuck = threading.Event()
    with pytest.raises(NoAnswer, match=r"no answer within 0 s \(list devices\)"):
        within(0.01, "list devices", stuck.wait)
    stuck.set()
    assert within(60.0, "add", lambda: 1 + 1) == 2
    with pytest.raises(DeviceError, match="broken"):
        within(60.0, "break", lambda: _raise(DeviceError("broken")))


def _raise(error: Exception) -> None:
    raise error


class FakeFleet:
    """A fleet in which every device says hello at once."""

    async def joined(self, device: str) -> None:
        return


class LosingEngine(FakeEngine):
    """An engine on which some devices are lost with their hypervisor."""

    def __init__(self, *losses: str, error: type[CsdError] = HypervisorLost) -> None:
        super().__init__()
        self.losses, self.error = losses, error
        self.started: list[str] = []

    def start(self, plan: DevicePlan) -> Handle:
        if plan.device.name in self.losses:
            raise self.error(f"{plan.device.name}: rack-1 is full")
        self.started.append(plan.device.name)
        return super().start(plan)


async def start_all(engine: LosingEngine) -> tuple[list[str], dict[str, str]]:
    config = ArrayConfig.model_validate({"name": "lab", "devices": [{"profile": "newport", "count": 3}]})
    folder = Path("/nonexistent")
    wanted = [DevicePlan("lab", "run", device, folder, folder, folder) for device in config.list_devices()]
    handles, times, lost = await lifecycle._start_devices(cast(Any, engine), cast(Fleet, FakeFleet()), wanted)
    assert sorted(times.device_seconds) == [handle.plan.device.name for handle in handles]
    return [handle.plan.device.name for handle in handles], lost


async def test_the_time_to_say_hello_begins_for_each_drive_when_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copying a large shard to a real drive is part of its start."""
    engine = LosingEngine()
    started: list[int] = []

    def begin(seconds: float) -> Deadline:
        started.append(len(engine.started))
        return Deadline(seconds)

    monkeypatch.setattr(lifecycle, "Deadline", begin)
    await start_all(engine)
    assert len(started) == 3
    assert all(starts > before for before, starts in enumerate(started))


async def test_an_array_comes_up_without_what_a_hypervisor_lost() -> None:
    assert await start_all(LosingEngine("csd-01")) == (["csd-00", "csd-02"], {"csd-01": "csd-01: rack-1 is full"})


async def test_an_array_of_which_nothing_is_left_does_not_come_up() -> None:
    with pytest.raises(HypervisorLost, match="rack-1 is full"):
        await start_all(LosingEngine("csd-00", "csd-01", "csd-02"))


async def test_any_other_error_of_a_device_ends_the_start() -> None:
    with pytest.raises(DeviceError, match="rack-1 is full"):
        await start_all(LosingEngine("csd-01", error=DeviceError))
