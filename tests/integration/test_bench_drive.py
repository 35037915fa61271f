"""The bench `drive` in its quick form, on real processes and with fewer examples."""

import pytest

from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from csd_lab.bench import run_bench
from csd_lab.bench.drive import bench_drive


@pytest.mark.long
def test_the_quick_form_holds_what_the_whole_one_must(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_drive, "EXAMPLES", ("language-model", "scaffold"))
    monkeypatch.setattr(bench_drive, "can_simulate", lambda: False)
    figures = run_bench("drive", paths, Silent(), 0, quick=True).figures
    assert (figures["examples_passed"], figures["in_place_record_bytes"]) == (1.0, 0)
    assert figures["scaffold_difference"] < 1e-9
    assert figures["lm_gradient_difference"] < 1e-6
    assert figures["in_place_gradient_difference"] < 1e-6
