"""Whether a file can be written, asked before and when it is."""

from pathlib import Path

import pytest

from firmware_agent.common.errors import EnvironmentUnfit
from host.core.owned_files import check_writable, write_whole


def targets(folder: Path) -> dict[str, Path]:
    """Return paths that cannot be written, by the reason that is said."""
    (folder / "file").write_bytes(b"kept")
    (folder / "folder").mkdir()
    return {"Is a directory": folder / "folder", "Not a directory": folder / "file" / "below"}


@pytest.mark.parametrize("folder", [False, True])
def test_what_can_be_written_is_written_and_what_cannot_is_told_before_and_then(tmp_path: Path, folder: bool) -> None:
    refused = targets(tmp_path)
    if not folder:
        refused["No such file or directory"] = tmp_path / "missing" / "file"
    else:
        refused["File exists"] = refused.pop("Not a directory")  # as the folder that is made
    before = sorted(tmp_path.rglob("*"))
    for reason, path in refused.items():
        for act in (check_writable, lambda path, *words, folder: write_whole(path, b"new", *words, folder=folder)):
            with pytest.raises(EnvironmentUnfit) as caught:
                act(path, "give another", "the table", folder=folder)
            assert str(caught.value) == f"{path}: the table cannot be written ({reason}); give another"
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_bytes() == b"kept"


def test_asking_leaves_no_file_and_keeps_the_one_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"kept")
    check_writable(tmp_path / "old", "give another")
    check_writable(tmp_path / "new", "give another")
    check_writable(tmp_path / "made" / "new", "give another", folder=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "old"]
    assert (tmp_path / "old").read_bytes() == b"kept"
