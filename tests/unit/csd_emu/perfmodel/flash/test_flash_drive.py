"""One drive: commands end once, whatever the windows; times against closed forms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.flash.flash_ceilings import flash_ceiling
from csd_emu.perfmodel.flash.flash_drive import (
    BURST_BYTES,
    ENGINE_LIMIT,
    FAIR,
    HOST_FIRST,
    POLICIES,
    FlashDrive,
    commands_table,
)
from csd_emu.perfmodel.flash.flash_queues import Columns, take
from csd_emu.perfmodel.flash.page_mapping import PageMapping
from csd_emu.perfmodel.host_load import HostLoad, LoadGenerator
from csd_emu.profiles.flash_geometry import SECOND, FlashParameters
from firmware_agent.common.errors import ConfigurationError

TINY = FlashParameters(
    **{"channels": 2, "dies_per_channel": 2, "planes": 2, "blocks_per_plane": 6, "pages_per_block": 2},
    **{"read_ns": 50, "program_ns": 500, "erase_ns": 3500, "command_ns": 5, "over_provisioning": 0.6},
    **{"channel_bytes_per_second": 400 * SECOND, "link_bytes_per_second": 1000 * SECOND},
)
PAGES = TINY.namespace_pages

asked = st.lists(
    st.tuples(st.integers(0, 9000), st.integers(0, PAGES - 1), st.integers(1, 20), st.booleans(), st.booleans()),
    max_size=40,
)


def to_commands(asked: list[tuple[int, int, int, bool, bool]]) -> Columns:
    commands = commands_table(len(asked))
    for row, (arrival, page, pages, writes, engine) in enumerate(sorted(asked, key=lambda each: each[0])):
        for name, value in (("arrival_ns", arrival), ("page", page), ("writes", writes), ("engine", engine)):
            commands[name][row] = value
        commands["pages"][row] = min(pages, PAGES - page)
    return commands


def make_drive(policy: str, thin: bool = False) -> FlashDrive:
    mapping = PageMapping(TINY, PAGES if not thin else PAGES + 30, filled=not thin)
    return FlashDrive(TINY, policy, 10 * SECOND if policy == ENGINE_LIMIT else 0, mapping)


def serve_windows(drive: FlashDrive, commands: Columns, cuts: list[int]) -> tuple[Columns, list[int]]:
    """Return all that ended, by number, and how long the dies worked in all windows."""
    parts, busy, arrival = [], np.zeros(drive.flash.dies, np.int64), commands["arrival_ns"]
    first = 0
    for cut in sorted(cuts):
        last = int(np.searchsorted(arrival, cut))
        parts.append(drive.serve(take(commands, slice(first, last)), cut))
        busy += drive.busy_ns
        assert np.all(drive.busy_ns <= cut)
        first = last
    parts.append(drive.serve(take(commands, slice(first, None))))
    busy += drive.busy_ns
    ended = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return take(ended, np.argsort(ended["number"])), busy.tolist()


@given(
    asked=asked, policy=st.sampled_from(POLICIES), cuts=st.lists(st.integers(0, 20000), max_size=5), thin=st.booleans()
)
def test_every_command_ends_once_and_windows_are_one_window_to_the_bit(
    asked: list[tuple[int, int, int, bool, bool]], policy: str, cuts: list[int], thin: bool
) -> None:
    commands = to_commands(asked)
    drives = [make_drive(policy, thin) for _ in range(2)]
    whole, busy = serve_windows(drives[0], commands, [])
    parts, busy_parts = serve_windows(drives[1], commands, cuts)
    assert drives[0].mapping.page_of.tolist() == drives[1].mapping.page_of.tolist()
    assert whole["number"].tolist() == list(range(len(asked)))
    assert {name: column.tolist() for name, column in whole.items()} == {
        name: column.tolist() for name, column in parts.items()
    }
    assert busy == busy_parts
    for name in ("arrival_ns", "page", "pages", "writes", "engine"):
        assert whole[name].tolist() == commands[name].tolist()
    assert not whole["failed"][~whole["writes"]].any()
    assert thin or not whole["failed"].any()
    least = np.where(whole["failed"], 0, np.where(whole["writes"], TINY.program_ns, TINY.read_ns))
    assert np.all(whole["finish_ns"] - whole["arrival_ns"] >= TINY.command_ns + least)


@given(asked=asked)
def test_reads_of_one_die_end_in_their_order(asked: list[tuple[int, int, int, bool, bool]]) -> None:
    commands = to_commands([(arrival, page // 4 * 4, 1, False, engine) for arrival, page, _, _, engine in asked])
    commands["engine"][:] = False
    ends = FlashDrive(TINY).serve(commands)["finish_ns"]
    assert np.all(np.diff(ends) >= TINY.read_ns)


def test_single_commands_take_what_their_parts_do() -> None:
    transfer, link = TINY.transfer_ns, TINY.link_ns(1)
    assert (transfer, link) == (11, 5)
    kinds = [(1, False, False), (1, True, False), (1, False, True), (8, False, False), (9, False, True)]
    far = [(1000 * number, 0, *kind) for number, kind in enumerate(kinds)]
    ended = FlashDrive(TINY).serve(to_commands(far))
    assert (ended["finish_ns"] - ended["arrival_ns"]).tolist() == [
        5 + 50 + transfer + link,
        5 + link + transfer + 500,
        5 + 50 + transfer,
        5 + 50 + 2 * 2 * transfer + TINY.link_ns(8),  # four dies read two pages each; two dies share a channel
        5 + 50 + 50 + transfer,  # of the first die, which reads twice
    ]


def test_the_engines_bytes_enter_at_the_limit_after_a_burst() -> None:
    flash = FlashParameters(blocks_per_plane=32)
    commands = commands_table(200)
    commands["pages"][:], commands["page"] = 8, 8 * np.arange(200)
    commands["engine"][:] = True
    limit = 50_000_000
    ends = FlashDrive(flash, ENGINE_LIMIT, limit).serve(commands)["finish_ns"]
    sent = 200 * 8 * flash.page_bytes - BURST_BYTES
    assert ends.max() == pytest.approx(sent / limit * SECOND, rel=0.01)
    commands["engine"][:] = False
    assert FlashDrive(flash, ENGINE_LIMIT, limit).serve(commands)["finish_ns"].max() < 0.01 * SECOND


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.3, 0.8])
def test_the_mean_wait_is_that_of_an_m_d_1_queue_on_each_die(load: float) -> None:
    flash = FlashParameters(blocks_per_plane=32, channel_bytes_per_second=2**52, link_bytes_per_second=2**52)
    rate = load * flash.dies * SECOND / flash.read_ns
    generator = LoadGenerator(HostLoad(4096, flash.namespace_pages, iops=rate, seed=3), flash)
    commands = generator.take_until(int(400_000 / rate * SECOND))
    ended = FlashDrive(flash).serve(commands)
    wait = (ended["finish_ns"] - ended["arrival_ns"]).mean() - flash.command_ns - flash.read_ns - 2
    assert wait == pytest.approx(load * flash.read_ns / (2 * (1 - load)), rel=0.02)


@pytest.mark.parametrize("pages", [128, 1])
def test_commands_that_wait_are_read_at_the_ceiling(pages: int) -> None:
    flash = FlashParameters(planes=2, blocks_per_plane=32, link_bytes_per_second=2**52)
    load = HostLoad(pages * 4096, flash.namespace_pages, 1.0, pages > 1, queue_depth=1)
    commands = LoadGenerator(load, flash).take_next(np.zeros(40_000 // pages, np.int64))
    ends = np.sort(FlashDrive(flash).serve(commands)["finish_ns"])
    first, last = ends[len(ends) // 4], ends[len(ends) // 2]
    rate = (len(ends) // 2 - len(ends) // 4) / (last - first) * SECOND
    assert rate == pytest.approx(flash_ceiling(flash, 1.0, pages).iops, rel=0.02)


def test_a_policy_that_is_not_known_a_limit_without_one_and_commands_of_no_window_are_refused() -> None:
    for policy, limit in (("unfair", 0), (ENGINE_LIMIT, 0), (FAIR, 5), (HOST_FIRST, 5)):
        with pytest.raises(ConfigurationError, match=f"{policy}.*engine_bytes_per_second of {limit}; choose one of"):
            FlashDrive(TINY, policy, limit)
    for wrong in ((0, PAGES, 1, False, False), (0, -1, 2, False, False)):
        commands = to_commands([wrong])
        commands["pages"][:] = 2
        with pytest.raises(ConfigurationError, match=f"page or more of the namespace's {PAGES};"):
            FlashDrive(TINY).serve(commands)
    commands = to_commands([(5, 0, 1, False, False), (7, 0, 1, False, False)])
    with pytest.raises(ConfigurationError, match="from 0 ns to 7 ns, and each"):
        FlashDrive(TINY).serve(commands, 7)
    with pytest.raises(ConfigurationError, match="sort them"):
        FlashDrive(TINY).serve(take(commands, np.array([1, 0])))
