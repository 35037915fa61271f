"""What a client program may not do, in threads that it starts as well; what torch imports before it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from firmware_agent.common.clients.client_program import ClientProgram
from firmware_agent.common.clients.confinement import confined
from firmware_agent.common.shipped_code import ShippedCode


def told_in_thread(call: Callable[[], object]) -> list[str]:
    """Return what a call in another thread is told if it may not."""
    told: list[str] = []

    def run() -> None:
        try:
            call()
        except PermissionError as error:
            told.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return told


def test_threads_are_confined_if_they_are_started_where_that_holds(tmp_path: Path) -> None:
    file = tmp_path / "here"
    with confined():
        (told,) = told_in_thread(lambda: file.write_text("a"))
        (nested,) = told_in_thread(lambda: told_in_thread(lambda: file.write_text("a"))[0] and file.write_text("b"))
    assert f"write to {file}" in told
    assert f"write to {file}" in nested
    assert told_in_thread(lambda: file.write_text("a")) == []


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("module", [torch, torch.serialization, torch.jit])
def test_torch_writes_no_file(module: Any, tmp_path: Path) -> None:
    what = torch.jit.script(torch.nn.Identity()) if module is torch.jit else torch.ones(1)
    with confined():
        for path in (tmp_path / "a.pt", str(tmp_path / "a.pt")):
            with pytest.raises(PermissionError, match="write to"):
                module.save(what, path)
        with pytest.raises(PermissionError, match="write to"):
            module.save(what, f=str(tmp_path / "a.pt"))
        assert not list(tmp_path.iterdir())
        with confined(False):
            module.save(what, tmp_path / "b.pt")
    module.save(what, f=tmp_path / "c.pt")
    assert {path.name for path in tmp_path.iterdir()} == {"b.pt", "c.pt"}


def test_a_program_may_not_take_the_writer_by_its_name(tmp_path: Path) -> None:
    text = "from torch import ones, save\ndef train(csd): save(ones(1), csd)"
    program = ClientProgram.load(ShippedCode("mine.py:train", text))
    with confined(), pytest.raises(PermissionError, match="write to"):
        program.call(str(tmp_path / "a.pt"))


@pytest.mark.parametrize(
    ("text", "made"),
    [("import torch\ndef train(): torch.optim.Adam", 1), ("def train(csd): csd.optimizer()", 0)],
)
def test_torchs_compiler_is_imported_when_a_program_is_loaded_that_may_need_it(
    text: str, made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(torch.optim, "SGD", lambda *given, **_: seen.append(given))
    ClientProgram.load(ShippedCode("mine.py:train", text))
    assert len(seen) == made
