import contextlib
import html
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


def _outline(name: str, alternative: str, *_: object) -> str:
    """Return a chart without what is drawn in it."""
    title = f'<title id="{name}-title">{html.escape(alternative)}</title>'
    return f'<svg role="img" aria-labelledby="{name}-title" viewBox="0 0 1 1">{title}</svg>'


@pytest.fixture(autouse=True)
def _nothing_needless(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare commands in this process what takes seconds of processor time and is tested by itself.

    Charts of reports are painted only where a test module has PAINTED. The launcher of native drives, which imports
    torch, starts with the first drive: a command that is refused starts none.
    """
    if not getattr(request.module, "PAINTED", False):
        monkeypatch.setattr("host.monitoring.report.charts.chart_svg.draw_svg", _outline)
    monkeypatch.setattr("csd_emu.engines.native_engine.launched_ahead", lambda *_: contextlib.nullcontext())


@pytest.fixture
def csd_emu(
    workshop: Workshop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Done]:
    """Run csd-emu in this process, on the workshop's folders."""
    return lambda *arguments: in_process(capsys, monkeypatch, *arguments)
