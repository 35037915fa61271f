import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_lab.fidelity import board_programs
from csd_lab.fidelity.board_facts import BoardFacts
from csd_lab.fidelity.board_programs import (
    ADDITIONS,
    MOST_KIBIBYTES,
    WantedPrograms,
    choose_programs,
    read_coremark,
    read_loops,
    read_networks,
    read_steps,
)
from firmware_agent.common.errors import ConfigurationError
from host.config.calibration_request import CalibrationRequest, read_request, read_spec

FACTS = BoardFacts("Lab", "6.1", [0, 3], 0, 4 << 30, "cp311", "2.9.1", "")
MARKS = [5, 1, 2, 3, *[4] * 12]
COREMARK = "Iterations/Sec   : 4391.42\nCorrect operation validated. See README.md\n"


@pytest.fixture(scope="module")
def training() -> CalibrationRequest:
    return read_request(read_spec("digits_cnn"), None, "1,8", None, None, 0)


@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(source: str, constants: Mapping[str, int]) -> bytes:
        return f"{source} {dict(constants)}".encode()

    monkeypatch.setattr(board_programs, "compile_guest", compiled)


def wanted(**more: object) -> WantedPrograms:
    given_ones: dict[str, object] = {
        "coremark": [],
        "ncnn": None,
        "networks": {},
        "release": "1.0.1",
        "training": None,
        "torch": "2.9.1",
    }
    return WantedPrograms(**(given_ones | more))  # type: ignore[arg-type]


def written(nanoseconds: list[int]) -> str:
    return "".join(f"{mark} {number}\n" for mark, number in zip(MARKS, nanoseconds, strict=True))


def test_the_loops_are_those_of_the_bare_machine_made_for_linux() -> None:
    (program,), notes = choose_programs(FACTS, wanted())
    assert notes == []
    text = program.files["memory_loops"].decode()
    assert "memory_loops.c" in text
    assert "'ON_LINUX': 1" in text
    assert f"'MOST_KIBIBYTES': {MOST_KIBIBYTES}" in text


def test_what_the_board_cannot_run_is_a_line_and_the_rest_goes_on(tmp_path: Path, training: CalibrationRequest) -> None:
    facts = BoardFacts("Lab", "6.1", [0], 0, None, "", "", "No module named 'torch'")
    programs, notes = choose_programs(facts, wanted(ncnn=tmp_path, networks={"n": (1, 1, 1)}, training=training))
    assert [program.name for program in programs] == ["memory loops"]
    assert "no python3" in notes[0]
    assert "No module named 'torch'" in notes[1]
    old = BoardFacts("Lab", "6.1", [0], 0, None, "cp311", "2.6.0", "")
    assert "its torch is 2.6.0" in choose_programs(old, wanted(training=training))[1][0]


def test_training_steps_bring_the_agent_and_a_task_without_quotes(training: CalibrationRequest) -> None:
    (_, program), notes = choose_programs(FACTS, wanted(training=training))
    assert notes == []
    assert {"firmware_agent/__init__.py", "firmware_agent/training/trainer.py", "training_steps.py"} <= set(
        program.files
    )
    task = program.command.partition("'")[2].rstrip("'")
    assert "'" not in task
    assert json.loads(task)["batches"] == [1, 8]


def test_a_program_that_is_missing_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        choose_programs(FACTS, wanted(coremark=[tmp_path / "none"]))
    (tmp_path / "empty").touch()
    with pytest.raises(ConfigurationError, match=r"empty is empty; name another file"):
        choose_programs(FACTS, wanted(coremark=[tmp_path / "empty"]))
    (tmp_path / "n.param").write_text("7767517\n")
    with pytest.raises(ConfigurationError, match=r"\(cp312\).*--python-version 312"):
        choose_programs(
            BoardFacts("Lab", "6.1", [0], 0, None, "cp312", "", "x"), wanted(ncnn=tmp_path, networks={"n": (1, 1, 1)})
        )


@given(st.integers(800_000, 40_000_000), st.lists(st.integers(1, 10**12), min_size=15, max_size=15))
def test_loops_have_their_names(clock: int, others: list[int]) -> None:
    found = read_loops(written([clock, *others]))
    assert found["clock"] == clock
    assert [found["read"], found["write"], found["copy"]] == others[:3]
    assert found["read in 16 KiB"] == others[3]
    assert found[f"read in {MOST_KIBIBYTES} KiB"] == others[-1]


@pytest.mark.parametrize(
    "output",
    [
        "",
        "5 4000000\n",
        written([ADDITIONS, *[1000] * 15]).replace("\n4 ", "\n7 ", 1),
        written([ADDITIONS, *[1000] * 14, 0]),
        written([ADDITIONS, *[1000] * 14, -1]),
        written([1, *[1000] * 15]),
        written([10**12, *[1000] * 15]),
        "a b c\n" * 16,
    ],
)
def test_loops_of_another_program_are_refused(output: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_loops(output)


def test_coremark_says_its_rate_if_it_computed_rightly() -> None:
    assert read_coremark(COREMARK) == {"CoreMark": 4391.42}
    for output in ("", COREMARK.replace("validated", "failed"), COREMARK.replace("4391.42", "0"), "x" * 65536):
        with pytest.raises(ValueError, match=r"\w"):
            read_coremark(output)


def test_networks_and_steps_are_those_that_were_to_run() -> None:
    assert read_networks(["a", "b"], "hello\na 10\nb 20\n") == {"a": 10, "b": 20}
    for output in ("", "a 10\n", "b 20\na 10\n", "a 10\nb 20\nc 30\n", "a 10\nb 0\n"):
        with pytest.raises(ValueError, match=r"\w"):
            read_networks(["a", "b"], output)
    assert read_steps([1, 8], '{"batch":1,"seconds":[3,1,2]}\n{"batch":8,"seconds":[5]}') == {"1": 2, "8": 5}
    for output in ("", '{"batch":1,"seconds":[1]}', '{"batch":1,"seconds":[]}\n{"batch":8,"seconds":[5]}', "{", "[]"):
        with pytest.raises(ValueError, match=r"\w"):
            read_steps([1, 8], output)
    with pytest.raises(ValueError, match=r"of -1"):
        read_steps([1], '{"batch":1,"seconds":[-1.0]}')
