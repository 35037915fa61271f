"""Ctrl-C on the native engine, at any moment, leaves nothing behind but what a run had already written down."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from host.cli import main as cli
from host.cli.commands import runs
from host.core.interrupts import Interrupts
from tests.support.commands import ARRAY, Done, Workshop, wait_until

SEED_VARIABLE = "CSD_TEST_SEED"
# A process that is interrupted before csd-emu's first line runs is ended by Python: a shell shows 130 for that too.
INTERRUPTED = {130, -signal.SIGINT}


def one_drive(workshop: Workshop, **job: Any) -> list[str | Path]:
    workshop.write("array.yaml", ARRAY | {"devices": [{"profile": "newport"}]})
    return workshop.job_arguments(**{"epochs": 1} | job)


def end_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, err = process.communicate(timeout=60)
    return process.returncode, err


@pytest.mark.long
def test_ctrl_c_at_ten_random_moments(workshop: Workshop) -> None:
    arguments = one_drive(workshop)
    begin = time.monotonic()
    assert workshop.run(*arguments).code == 0
    usual_seconds = time.monotonic() - begin
    seed = int(os.environ.get(SEED_VARIABLE, random.SystemRandom().randrange(2**32)))
    generator = random.Random(seed)
    moments = sorted(generator.uniform(0, 1.2 * usual_seconds) for _ in range(10))
    print(f"{SEED_VARIABLE}={seed}: {', '.join(f'{moment:.2f}' for moment in moments)} of {usual_seconds:.2f} s")
    codes = []
    for moment in moments:
        process = workshop.start(*arguments)
        try:
            process.wait(timeout=moment)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        code, err = end_of(process)
        codes.append(code)
        assert code in INTERRUPTED | {0}, f"after {moment:.2f} s: {code}\n{err}"
        assert code != 130 or "interrupted; what this command started has ended" in err
        assert code == -signal.SIGINT or "Traceback" not in err, err
        workshop.assert_clean()
    print(f"exit codes: {codes}")
    assert 130 in codes


@pytest.mark.long
@pytest.mark.parametrize("numbers", [[signal.SIGTERM], [signal.SIGINT] * 2])
def test_sigterm_and_an_impatient_user(workshop: Workshop, numbers: list[signal.Signals]) -> None:
    """In the middle of training, when devices, files and threads are all there."""
    process = workshop.start(*one_drive(workshop, rounds=500, target={"accuracy": 1.0}))
    wait_until(lambda: len(workshop.rounds()) >= 2)
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.02)
    code, err = end_of(process)
    assert code == 130, err
    assert "Traceback" not in err
    workshop.assert_clean()
    assert [record["round"] for record in workshop.rounds()][:2] == [1, 2]


def test_a_signal_while_modules_are_imported_waits_for_them(
    csd_emu: Callable[..., Done], workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import that is cut short can leave numpy or torch in pieces, and then it is they who fail."""
    imported = []

    def prepare_run(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)
        imported.append(True)

    fresh = Interrupts()  # the process-wide one remembers the signals of other tests
    for module in (cli, runs):
        monkeypatch.setattr(module, "INTERRUPTS", fresh)
    monkeypatch.setattr("host.app.prepare.prepare_run", prepare_run)
    done = csd_emu(*workshop.job_arguments())
    assert (done.code, imported) == (130, [True])
    workshop.assert_clean()


def test_an_interrupted_up_leaves_nothing_and_a_finished_one_its_array(workshop: Workshop) -> None:
    process = workshop.start("up", workshop.array)
    wait_until(lambda: len(workshop.agents()) == 2)
    process.send_signal(signal.SIGINT)
    code, err = end_of(process)
    if code == 0:  # it was just ready
        assert len(workshop.agents()) == 2
        assert workshop.run("down", "lab").code == 0
    else:
        assert code == 130, err
    workshop.assert_clean()
