"""A drive in service: its host sees the same in windows of any sizes; training and the host cost each other."""

import copy
import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.perfmodel.flash.flash_drive import FAIR, HOST_FIRST, FlashDrive, commands_table
from csd_emu.perfmodel.flash.flash_queues import Columns, Integers
from csd_emu.perfmodel.flash.page_mapping import PageMapping
from csd_emu.perfmodel.host_load import HostLoad
from csd_emu.perfmodel.storage.array_storage import ArrayStorage
from csd_emu.perfmodel.storage.latency_throttle import LatencyThrottle
from csd_emu.perfmodel.storage.load_source import POLL_NS, ScheduledLoad
from csd_emu.perfmodel.storage.served_drive import ServedDrive
from csd_emu.profiles.flash_geometry import SECOND, FlashParameters
from firmware_agent.common.errors import ConfigurationError, DataError

FLASH = FlashParameters(channels=2, dies_per_channel=2, blocks_per_plane=12, pages_per_block=16, over_provisioning=0.4)
PAGES = FLASH.namespace_pages
AGED = PageMapping(FLASH).age(3)
MIXED = HostLoad(8192, PAGES, 0.8, iops=2000.0, seed=7)
QUEUED = HostLoad(4096, PAGES, 0.5, queue_depth=4, seed=5)
ENGINE_RATE = 1e9


def serve(*loads: ScheduledLoad, policy: str = FAIR, drive: type[FlashDrive] = FlashDrive) -> ServedDrive:
    served = ServedDrive(drive(FLASH, policy, mapping=copy.deepcopy(AGED)), loads, ENGINE_RATE)
    served.begin_step(0)
    return served


@settings(max_examples=6)
@given(cuts=st.lists(st.integers(1, 2 * SECOND), max_size=6), load=st.sampled_from([MIXED, QUEUED]))
def test_what_the_host_sees_is_the_same_for_windows_of_any_sizes(cuts: list[int], load: HostLoad) -> None:
    scheduled = ScheduledLoad(load, end_seconds=0.03 if load.queue_depth else 1.2)
    whole, parts = serve(scheduled), serve(scheduled)
    whole.advance(2 * SECOND)
    for cut in [*sorted(cuts), 2 * SECOND]:
        parts.advance(cut)
    figures, others = whole.take_figures(), parts.take_figures()
    assert replace_busy(figures) == replace_busy(others)
    assert figures.die_busy_share == pytest.approx(others.die_busy_share, rel=1e-12)
    assert len(figures.second_p99_seconds) == 2
    assert figures.reads + figures.writes > 40
    assert figures.seconds == 2.0
    assert figures.alone_p99_seconds == figures.p99_seconds


def replace_busy(figures: object) -> dict[str, object]:
    return {name: getattr(figures, name) for name in figures.__struct_fields__ if name != "die_busy_share"}  # type: ignore[attr-defined]


class Recording(FlashDrive):
    """Flash that keeps the commands that ended."""

    def serve(self, commands: Columns, until_ns: int = 2**62) -> Columns:
        ended = super().serve(commands, until_ns)
        self.ended = [*getattr(self, "ended", ()), ended]
        return ended


def test_a_load_with_a_queue_depth_keeps_it() -> None:
    served = serve(ScheduledLoad(QUEUED, end_seconds=0.03), policy=HOST_FIRST, drive=Recording)
    served.advance(SECOND)
    ended = served.drive.ended  # type: ignore[attr-defined]
    order = np.argsort(np.concatenate([each["number"] for each in ended]))
    begins, ends = (np.concatenate([each[name] for each in ended])[order] for name in ("arrival_ns", "finish_ns"))
    assert begins[:4].tolist() == [0] * 4
    # Each command follows the end of another one: of the k-th end, the command k + 4.
    followed = np.sort((ends // POLL_NS + 1) * POLL_NS)
    assert begins[4:].tolist() == followed[followed < 30_000_000].tolist()


def test_training_and_the_host_cost_each_other() -> None:
    heavy = ScheduledLoad(replace(MIXED, iops=9000.0, read_share=1.0))
    alone, loaded, undisturbed = serve(), serve(heavy), serve(heavy)
    now = 0
    ends = []
    for drive in (alone, loaded):
        now = 0
        for _ in range(20):
            now = drive.read(now, 4_000_000) + 5_000_000
        ends.append(now)
    assert ends[0] == 20 * (alone.alone_ns(4_000_000) + 5_000_000)
    assert ends[1] > 1.05 * ends[0]
    for drive in (loaded, undisturbed):
        drive.advance(SECOND)
    figures, others = loaded.take_figures(), undisturbed.take_figures()
    assert figures.p99_seconds > 1.1 * figures.alone_p99_seconds
    assert figures.alone_p99_seconds == others.p99_seconds
    assert figures.reads == others.reads


def test_loads_begin_and_end_with_seconds_and_steps() -> None:
    steady = replace(MIXED, read_share=1.0, poisson=False)
    plans = [
        ScheduledLoad(steady, begin_seconds=0.25, end_seconds=0.75),
        ScheduledLoad(steady, begin_step=3, end_step=5),
        ScheduledLoad(commands_table(3) | {"arrival_ns": np.array([0, 10, SECOND]), "pages": np.ones(3, np.int64)}),
    ]
    counts = []
    for plan in plans:
        drive = serve(plan)
        for step in range(1, 8):
            drive.begin_step(step)
            drive.advance(step * SECOND // 8)
        drive.advance(SECOND // 2 * 3)
        counts.append(drive.take_figures().reads)
    # Of 2000 a second for half a second, and for two steps of an eighth each, the first behind a gap; a whole trace.
    assert counts == [999, 499, 3]


class Fixed:
    """Throttle of one rate."""

    def __init__(self, rate: float) -> None:
        self.bytes_per_second, self.interval_ns, self.seen = rate, 10_000_000, 0
        self.silent, self.woken = False, 0

    def wake(self) -> None:
        self.silent, self.woken = False, self.woken + 1

    def observe(self, now_ns: int, latency_ns: Integers) -> None:
        assert now_ns % self.interval_ns == 0
        self.seen += len(latency_ns)

    def state(self) -> list[float]:
        return [self.bytes_per_second, self.seen]

    def restore(self, state: list[float]) -> None:
        self.bytes_per_second, self.seen = state[0], int(state[1])


def test_a_throttle_holds_the_engine_to_its_rate_and_sees_each_command_once() -> None:
    drive = serve(ScheduledLoad(MIXED, end_seconds=0.9))
    drive.throttle = throttle = Fixed(2e6)
    end = drive.read(0, 1_000_000)
    assert 0.35 * SECOND < end < 0.55 * SECOND
    drive.advance(SECOND)
    figures = drive.take_figures()
    assert figures.waited_seconds > 0.3
    assert throttle.seen == figures.reads + figures.writes


def test_a_drive_that_fills_up_refuses_writes_and_goes_on() -> None:
    thin = PageMapping(FLASH, 2 * PAGES, filled=False)
    load = HostLoad(4096, 2 * PAGES, 0.0, sequential=True, iops=1500.0)
    drive = ServedDrive(FlashDrive(FLASH, mapping=thin), [ScheduledLoad(load)], ENGINE_RATE)
    drive.begin_step(0)
    drive.advance(SECOND)
    figures = drive.take_figures()
    assert 0 < figures.failed_writes < figures.writes
    assert drive.write(SECOND, 4096 * 2 * PAGES)[1]
    assert not serve().write(0, 4096)[1]


def test_a_state_goes_on_as_its_drive_would_have() -> None:
    plans = ScheduledLoad(MIXED), ScheduledLoad(QUEUED, begin_step=3, end_seconds=0.305)
    first, second = (ArrayStorage({"csd-00": serve(*plans)}) for _ in range(2))
    for array in (first, second):
        array.drives["csd-00"].throttle = Fixed(5e7)
    for step in range(3):
        first.begin_step(step)
        first.read("csd-00", step / 10, 300_000, 3, 0.02)
        first.end((step + 1) / 10)
    first.drives["csd-00"].take_figures()
    second.restore({name: array.copy() for name, array in first.state().items()})
    found = []
    for array in (first, second):
        array.begin_step(3)
        seconds = array.read("csd-00", 0.3, 500_000, 5, 0.01), array.write("csd-00", 0.5, 70_000)
        array.end(1.25)
        found.append((seconds, array.drives["csd-00"].take_figures()))
    assert found[0] == found[1]
    state = first.state()
    for wrong in (itertools.islice(state.items(), 5), ((name, array[:-1]) for name, array in state.items())):
        with pytest.raises(DataError, match=r"csd-00|begin anew"):
            ArrayStorage({"csd-00": serve(*plans)}).restore(dict(wrong))


def test_a_limit_that_the_host_breaks_by_itself_parks_training_for_a_second_at_most() -> None:
    drive = serve(ScheduledLoad(MIXED))
    drive.throttle = LatencyThrottle(1e-6, ENGINE_RATE)
    drive.advance(SECOND // 2)
    assert drive.read(SECOND // 2, 100_000) < 3 * SECOND


def test_reads_are_not_throttled_without_a_host() -> None:
    drive = serve(ScheduledLoad(MIXED, begin_step=9))
    drive.throttle = LatencyThrottle(1e-3, ENGINE_RATE)
    drive.advance(SECOND // 10)
    assert drive.read(SECOND // 10, 10_000_000) - SECOND // 10 == pytest.approx(drive.alone_ns(10_000_000), rel=0.1)


def test_a_load_beyond_what_flash_serves_ends_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("csd_emu.perfmodel.storage.served_drive.MOST_WAITING", 2000)
    drive = serve(ScheduledLoad(replace(MIXED, iops=3900.0, read_share=0.0)))
    with pytest.raises(ConfigurationError, match=r"operations wait for the dies of a drive.*lower iops"):
        drive.advance(60 * SECOND)


def test_a_load_with_a_queue_depth_that_begins_later_costs_nothing_until_then() -> None:
    drive = serve(ScheduledLoad(QUEUED, begin_seconds=500.0))
    drive.advance(499 * SECOND)
    drive.advance(500 * SECOND + 5_000_000)
    assert drive.take_figures().reads > 0
    assert 0 < drive.host_bytes_per_second(SECOND) < 1e9
