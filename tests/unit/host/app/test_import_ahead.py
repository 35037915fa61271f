"""What a run imports beside the start of its drives."""

from __future__ import annotations

import pytest

from host.app import run_job


def test_an_import_that_fails_is_left_to_whoever_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("host.app.run_job.importlib.import_module", fail)
    run_job._import_ahead()
