"""Examples of what a drive accepts, each run as it ships on native drives."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from csd_lab.bench.drive.bench_drive import EXAMPLES, FLOWER
from tests import ROOT
from tests.support.commands import Done, Workshop

Command = Callable[..., Done]
MOST_LINES = 40


def lines_of(name: str) -> int:
    """Lines of Python in an example."""
    return sum(len(path.read_text().splitlines()) for path in (ROOT / "examples" / name).glob("*.py"))


@pytest.mark.parametrize("name", [*EXAMPLES, FLOWER])
def test_an_example_is_short_and_learns(name: str, workshop: Workshop, csd_emu: Command) -> None:
    assert lines_of(name) <= MOST_LINES
    folder = Path(shutil.copytree(ROOT / "examples" / name, workshop.folder / name))
    done = csd_emu("run", folder / "job.yaml", "--array", folder / "array.yaml", "--runs", workshop.runs, "--json")
    assert done.code == 0, done.err
    losses = [record["test_loss"] for record in workshop.rounds()]
    assert losses[-1] < 0.95 * losses[0]
    assert all(record["lost"] == [] for record in workshop.rounds())
    workshop.assert_clean()
