"""The bench `gradients` on real processes, made small."""

from typing import Any

import pytest
from torch import nn

from csd_emu.paths import Paths
from csd_emu.progress import Silent
from host.bench import gradients, run_bench
from host.bench.gradient_reference import Group, reference_step


def test_drives_and_one_process_agree_in_every_mode(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "MODELS", {"mobilenet_v2": 32})
    report = run_bench("gradients", paths, Silent(), 0)
    assert (report.bench, report.engine, report.clock) == ("gradients", "native", "none")
    cases = report.samples["relative_errors"]
    assert len(cases) == len(gradients.CASES)
    assert report.figures == {"worst_relative_error": max(case["worst"] for case in cases.values())}
    assert report.figures["worst_relative_error"] < 1e-9
    assert cases["mobilenet_v2, batch_norm synchronised"]["tensors"] == 314
    assert cases["mobilenet_v2, batch_norm synchronised"]["vanishing"] > 0


def test_it_sees_a_record_that_counts_otherwise(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_the_first_record(model: nn.Module, batch_norm: str, groups: list[Group], *others: Any) -> Any:
        first = groups[0]
        cut = first._replace(images=first.images[1:], labels=first.labels[1:], parts=(len(first.labels) - 1,))
        return reference_step(model, batch_norm, [cut, *groups[1:]], *others)

    monkeypatch.setattr(gradients, "MODELS", {"digits_cnn": 8})
    monkeypatch.setattr(gradients, "reference_step", without_the_first_record)
    assert run_bench("gradients", paths, Silent(), 0).figures["worst_relative_error"] > 1e-3
