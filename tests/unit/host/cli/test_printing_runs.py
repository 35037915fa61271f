"""Tables of runs on the terminal."""

import pytest

from host.cli.commands.history import print_comparison, print_runs
from host.monitoring.report.load_run import load_run
from host.monitoring.runs.run_comparison import compare_runs
from host.monitoring.runs.run_listing import RunList, RunRow
from tests import ROOT

RUN = ROOT / "tests" / "data" / "run-0.1.0" / "federated"
NAME = "[red]a[/b]"


def test_names_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    run = load_run(RUN)
    print_comparison(compare_runs({NAME: [run], f"other {NAME}": [run]}))
    print_runs(RunList(NAME, [RunRow(NAME, "runs/1", "2026-11-30 00:00:00", "finished", clock=NAME)]))
    shown = capsys.readouterr().out
    assert f"Runs compared with {NAME}" in shown
    assert f"Runs in {NAME}" in shown
    assert f"other {NAME}" in shown
    assert "\\[" not in shown
