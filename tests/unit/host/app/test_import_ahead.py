"""What a run imports beside the start of its drives."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from csd_emu.util.paths import Paths
from host.app import run_job


@pytest.mark.parametrize("own", [None, "/somewhere"])
def test_torchs_compiler_is_imported_when_its_folder_is_known(monkeypatch: pytest.MonkeyPatch, own: str | None) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    if own is not None:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", own)
    seen: dict[str, str | None] = {}

    def take(name: str) -> None:
        seen[name] = os.environ.get("TORCHINDUCTOR_CACHE_DIR")

    monkeypatch.setattr("host.app.run_job.importlib.import_module", take)
    request: Any = SimpleNamespace(sync=object())
    run_job._import_ahead(request)
    assert seen["torch._dynamo"] == (own or str(Paths.default().torch))
    request.sync = None
    seen.clear()
    run_job._import_ahead(request)
    assert list(seen) == ["host.monitoring.report.report_page"]


def test_an_import_that_fails_is_left_to_whoever_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("host.app.run_job.importlib.import_module", fail)
    request: Any = SimpleNamespace(sync=object())
    run_job._import_ahead(request)
