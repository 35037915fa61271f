from pathlib import Path

import pytest

from firmware_agent.common.errors import EnvironmentUnfit
from host.fleet import array_state as presence
from host.fleet.array_state import is_present, present


def test_the_lock_is_there_as_long_as_the_block(tmp_path: Path) -> None:
    path = tmp_path / "run" / "lab.present"
    for _ in range(2):
        assert not is_present(path)
        with present(path):
            assert is_present(path)
        assert not path.exists()


def test_a_second_one_is_refused_and_leaves_the_first_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "_LOOK_SECONDS", 0.0)
    path = tmp_path / "lab.present"
    with present(path):
        with pytest.raises(EnvironmentUnfit, match="keeps this array up already"), present(path):
            pass
        assert is_present(path)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentUnfit, match="make its folder writable"), present(tmp_path / "file" / "x"):
        pass
