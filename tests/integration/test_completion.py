"""Shell completion, as a real bash asks for it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from csd_lab.cli.bench import complete_bench
from host.cli import common_options as completion
from tests.support.commands import Done, Workshop

ROOT = Path(__file__).parents[2]
Command = Callable[..., Done]
# bash's own part: what Tab does with the words of a line, the last of them unfinished.
ASK = """
source "$COMPLETION"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
function=$(complete -p csd-emu | sed 's/.*-F \\([^ ]*\\).*/\\1/')
"$function" csd-emu "${COMP_WORDS[COMP_CWORD]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def complete(workshop: Workshop) -> Callable[..., set[str]]:
    """Return what bash offers for a line's words."""
    folder = workshop.folder / "bin"
    folder.mkdir()
    program = folder / "csd-emu"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m host "$@"\n')
    program.chmod(0o755)
    environment = workshop.environment | {"PATH": f"{folder}:{os.defpath}", "PYTHONPATH": str(ROOT)}

    completion = folder / "completion"
    source = environment | {"_CSD_EMU_COMPLETE": "source_bash"}
    with open(completion, "wb") as stream:
        subprocess.run([program], stdout=stream, env=source, check=True)
    environment["COMPLETION"] = str(completion)

    def ask(*words: str) -> set[str]:
        command = ["bash", "--norc", "-c", ASK, "bash", "csd-emu", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.stderr == ""
        return set(done.stdout.split())

    return ask


def test_bash_completes_verbs_and_names(workshop: Workshop, complete: Callable[..., set[str]]) -> None:
    (workshop.home / "state" / "arrays" / "lab").mkdir(parents=True)
    assert {"run", "report", "reproduce"} <= complete("r")
    assert complete("down", "") == {"lab"}
    assert complete("inject", "lab", "csd-00", "f") == {"fill", "freeze"}
    assert complete("run", "job.yaml", "--engine", "n") == {"native"}
    assert complete("run", "") == set()  # so that bash offers files
    assert list((workshop.home / "state" / "arrays").iterdir()) == [workshop.home / "state" / "arrays" / "lab"]


@pytest.mark.parametrize(
    ("complete_it", "incomplete", "offered"),
    [
        (complete_bench, "hyper", ["hypertune", "hypertune_sim", "hypertune_under_io", "hypertune_world"]),
        (completion.complete_profile, "new", ["newport"]),
        (completion.complete_example, "quick", ["quickstart"]),
        (completion.complete_schema, "job", ["job.yaml"]),
        (completion.complete_schema, "inv", ["inventory.yaml"]),
        (completion.complete_schema, "ci", ["ci", "ci-baseline"]),
        (completion.complete_array, "", []),
        (completion.complete_fault, "x", []),
    ],
)
def test_names_are_found(
    workshop: Workshop, complete_it: Callable[[str], list[str]], incomplete: str, offered: list[str]
) -> None:
    assert complete_it(incomplete) == offered
    assert not workshop.home.exists()


def test_it_imports_nothing_that_is_slow() -> None:
    """Tab is pressed more often than any command is run."""
    program = (
        "import sys; from host.cli.entry import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'grpc', 'sklearn', 'libvirt', 'matplotlib', 'cryptography'} & sys.modules.keys()))"
    )
    environment = os.environ | {"_CSD_EMU_COMPLETE": "complete_bash", "COMP_CWORD": "1", "PYTHONPATH": str(ROOT)}
    for words in ("csd-emu ", "csd-emu profiles ", "csd-emu inject lab csd-00 "):
        environment |= {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()))}
        command = [sys.executable, "-c", "import sys; sys.argv[0] = 'csd-emu'\n" + program]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        assert done.stdout.splitlines()[-1] == "[]"
        assert len(done.stdout.splitlines()) > 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_its_script(csd_emu: Command, monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    monkeypatch.setenv("_CSD_EMU_COMPLETE", f"source_{shell}")
    done = csd_emu()
    assert done.code == 0
    assert f"complete_{shell}" in done.out
    assert "csd-emu" in done.out
