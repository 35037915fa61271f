"""Threads of torch in a real machine of several cores, under the core model."""

from pathlib import Path

import pytest

from csd_emu.cycles.parameters import CoreParameters
from csd_emu.cycles.plugin_build import CyclePlugin
from csd_emu.image import ImageStore
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from csd_lab.fidelity.thread_scaling import WHOLE, measure_threads, scaling_of
from firmware_agent.common.frames.session_frames import Job

pytestmark = [pytest.mark.vm, pytest.mark.long]


def test_two_threads_do_the_work_of_one_and_the_main_one_alone_updates_small_tensors(tmp_path: Path) -> None:
    plugin = CyclePlugin.build(tmp_path / "built", CoreParameters())
    image = ImageStore(Paths.default().images).ensure(Silent())
    job = Job("digits_cnn", {}, None, 1 / 255, 0, 1e-4, 0.9, 4)
    one, two = measure_threads(image, plugin, job, (1, 8, 8), 2, (1, 2))
    assert [len(each.phases[WHOLE]) for each in (one, two)] == [1, 2]
    assert one.phases["update"][0].instructions > 100_000
    scaling = scaling_of(one, two)
    assert all(0.7 < phase.gain <= 2 for phase in scaling.values())
    assert scaling["update"].gain == pytest.approx(1, abs=0.1)
    assert two.phases["update"][1].cycles < 0.05 * two.phases["update"][0].cycles
    assert scaling[WHOLE].extra_work == pytest.approx(0.05, abs=0.2)
