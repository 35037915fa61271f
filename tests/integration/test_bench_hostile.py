"""The benches `hostile` and `overhead` on real processes, made small: what they report, and that nothing is left."""

import psutil
import pytest

from csd_emu.engines import native_launcher
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from csd_lab.bench import run_bench
from csd_lab.bench.security import hostile_runs as hostile
from csd_lab.bench.security.hostile_behaviour import Behaviour
from csd_lab.bench.training import noop_rounds as overhead
from firmware_agent.common.errors import ConfigurationError


def agents() -> set[int]:
    """Of this process' own; those that have ended wait to be reaped."""
    living = [child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]
    programs = {native_launcher.__file__, "csd_lab.bench.security.hostile_drive"}
    return {child.pid for child in living if programs & set(child.cmdline())}


@pytest.mark.long
def test_a_hostile_drive_is_held_off_and_named(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile, "HOSTILE", (Behaviour.NAN, Behaviour.FALSE_SAMPLES))
    jobs = {"federated": {"rounds": 3}, "sync": {"rounds": 1, "batch_size": 16, "sync": {"round_steps": 5}}}
    monkeypatch.setattr(hostile, "_JOBS", jobs)
    monkeypatch.setattr(hostile, "WITHIN_STEP", {Behaviour.SUMS_NAN: ("normalised",)})
    report = run_bench("hostile", paths, Silent(), 0, quick=True)
    figures = {name: report.figures[name] for name in ("cases", "runs_lost", "honest_drives_lost", "unnamed")}
    assert figures == {"cases": 5, "runs_lost": 0, "honest_drives_lost": 0, "unnamed": 0}
    assert report.figures["final_accuracy"] == 0.0  # refused from the first round on: the same run to the bit
    assert [case["mode"] for case in report.samples["cases"]] == ["federated"] * 2 + ["sync"] * 2 + ["normalised"]
    assert agents() == set()


@pytest.mark.long
def test_checks_are_timed_against_none(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "DEVICES", 2)
    monkeypatch.setattr(overhead, "_KINDS", {"noop": (1024, 3), "exchange": (300_000, 2)})
    report = run_bench("overhead", paths, Silent(), 0)
    lengths = {name: len(values) for name, values in report.samples.items()}
    sides = ("checked", "unchecked", "checked_processor", "unchecked_processor")
    assert lengths == {f"{kind}_{side}_seconds": n for kind, n in (("noop", 3), ("exchange", 2)) for side in sides}
    assert agents() == set()


def test_a_bench_that_has_no_quick_form_says_so(paths: Paths) -> None:
    with pytest.raises(ConfigurationError, match="no option --quick"):
        run_bench("rounds", paths, Silent(), 0, quick=True)
