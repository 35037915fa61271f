from collections.abc import Callable, Iterator

import pytest

from csd_emu.util.paths import HOME_VARIABLE
from tests.support.commands import Done, Workshop, in_process, temporary_workshop


@pytest.fixture
def workshop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    """A user's files, and csd-emu's own folders, which commands in this process use too."""
    with temporary_workshop(Workshop) as workshop:
        for name in (HOME_VARIABLE, "TMPDIR"):
            monkeypatch.setenv(name, workshop.environment[name])
        yield workshop


@pytest.fixture
def csd_emu(
    workshop: Workshop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Done]:
    """Run csd-emu in this process, on the workshop's folders."""
    return lambda *arguments: in_process(capsys, monkeypatch, *arguments)
