"""Which long tests a commit must pass (tests/long.py), with git."""

import subprocess

import pytest

from tests import long


def test_the_turn_goes_on_with_the_commits_and_what_changed_is_that_of_the_last(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("clone")
    monkeypatch.setattr(long, "ROOT", folder)
    identity = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    turns = []
    for number in range(long.THIRDS):
        (folder / f"{number}.py").touch()
        subprocess.run(["git", "add", "."], cwd=folder, check=True)
        subprocess.run(["git", *identity, "commit", "--quiet", "-m", str(number)], cwd=folder, check=True)
        turns.append(long.turn_of_commit())
    assert sorted(turns) == [0, 1, 2]
    assert long.changed_paths(None) == ["2.py"]
    assert long.changed_paths("HEAD~2") == ["1.py", "2.py"]


def test_without_git_there_is_a_turn_all_the_same(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long, "ROOT", tmp_path_factory.mktemp("no-clone"))
    assert (long.turn_of_commit(), long.changed_paths(None)) == (0, [])
