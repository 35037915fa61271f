"""The bench `rounds` on real processes, made small: what it reports, and that it leaves nothing behind."""

import asyncio

import psutil
import pytest

from csd_emu.engines import native_launcher
from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from csd_lab.bench import run_bench
from csd_lab.bench.training import noop_rounds as rounds
from csd_lab.bench.training.gloo import gloo_group
from firmware_agent.common.errors import EnvironmentUnfit
from host.core.interrupts import INTERRUPTS


def children() -> set[int]:
    """This process' own, but for those that have ended and wait to be reaped."""
    living = [child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]
    programs = native_launcher.__file__, "gloo"
    return {child.pid for child in living if any(program in " ".join(child.cmdline()) for program in programs)}


@pytest.mark.long
def test_it_reports_both_figures_with_their_samples(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"DEVICES": 2, "NOOP_ROUNDS": 3, "EXCHANGE_ELEMENTS": 300_000, "EXCHANGE_REPETITIONS": 2}
    for name, value in small.items():
        monkeypatch.setattr(rounds, name, value)
    report = run_bench("rounds", paths, Silent(), 0)
    assert (report.bench, report.engine, report.clock) == ("rounds", "native", "wall")
    lengths = {name: len(values) for name, values in report.samples.items()}
    assert lengths == {"noop_round_seconds": 3, "exchange_seconds": 2, "gloo_seconds": 2}
    assert all(seconds > 0 for values in report.samples.values() for seconds in values)
    assert set(report.figures) == {"noop_round_seconds_median", "exchange_over_gloo"}
    assert "qemu" not in report.machine
    assert children() == set()


def test_a_rank_that_dies_is_one_clear_error_and_none_is_left() -> None:
    async def all_reduce() -> None:
        async with gloo_group(2, 1000, Deadline(120.0)) as gloo:
            assert await gloo.all_reduce_seconds() > 0
            gloo._ranks[1].kill()
            await gloo._ranks[1].wait()
            await gloo.all_reduce_seconds()

    with pytest.raises(EnvironmentUnfit, match="gloo rank"):
        INTERRUPTS.run(all_reduce())
    assert children() == set()


def test_ranks_that_do_not_find_each_other_in_time_are_ended() -> None:
    async def late() -> None:
        async with gloo_group(2, 10, Deadline(0.0)):
            await asyncio.sleep(0)

    with pytest.raises(EnvironmentUnfit, match="not done in 0 s"):
        INTERRUPTS.run(late())
    assert children() == set()
