import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from csd_emu.paths import HOME_VARIABLE
from tests.commands import Done, Workshop, in_process


@pytest.fixture
def workshop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    """A user's files; agents that a failed test leaves are ended.

    Not below `tmp_path`, which nobody else may enter, while libvirt's daemon runs as another user than root; and short,
    for a Unix socket's path.
    """
    folder = Path(tempfile.mkdtemp(prefix="csd-"))
    folder.chmod(0o711)
    workshop = Workshop(folder)
    for name in (HOME_VARIABLE, "TMPDIR"):
        monkeypatch.setenv(name, workshop.environment[name])
    yield workshop
    for process in workshop.agents():
        process.kill()
    shutil.rmtree(folder)


@pytest.fixture
def csd_emu(
    workshop: Workshop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Done]:
    """Run csd-emu in this process, on the workshop's folders."""
    return lambda *arguments: in_process(capsys, monkeypatch, *arguments)
