"""The bench `gradients` on real processes, made small."""

from typing import Any

import pytest
from torch import nn

from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from csd_lab.bench import run_bench
from csd_lab.bench.training import bench_gradients as gradients
from csd_lab.bench.training.gradient_reference import ReferenceParticipant, reference_step

MODELS = {"mobilenet_v2": 32, "digits_cnn": 8}


@pytest.mark.long
def test_drives_and_one_process_agree_in_every_mode_and_a_record_that_counts_otherwise_is_seen(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the digits' own net alone, the one process leaves the first record out."""

    def without_the_first_record(
        model: nn.Module, batch_norm: str, groups: list[ReferenceParticipant], *others: Any
    ) -> Any:
        if model.side == MODELS["digits_cnn"]:
            first = groups[0]
            cut = first._replace(images=first.images[1:], labels=first.labels[1:], parts=(len(first.labels) - 1,))
            groups = [cut, *groups[1:]]
        return reference_step(model, batch_norm, groups, *others)

    monkeypatch.setattr(gradients, "MODELS", MODELS)
    monkeypatch.setattr(gradients, "reference_step", without_the_first_record)
    report = run_bench("gradients", paths, Silent(), 0)
    assert (report.bench, report.engine, report.clock) == ("gradients", "native", "none")
    cases = report.samples["relative_errors"]
    assert report.figures == {"worst_relative_error": max(case["worst"] for case in cases.values())}
    spoiled = {name: cases.pop(name) for name in list(cases) if name.startswith("digits_cnn")}
    assert spoiled
    assert min(case["worst"] for case in spoiled.values()) > 1e-3
    assert len(cases) == len(gradients.CASES)
    assert max(case["worst"] for case in cases.values()) < 1e-9
    assert cases["mobilenet_v2, batch_norm synchronised"]["tensors"] == 314
    assert cases["mobilenet_v2, batch_norm synchronised"]["vanishing"] > 0
