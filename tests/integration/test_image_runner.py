import sys
import threading
from pathlib import Path

import pytest

from csd_emu.image.layer import Stages
from csd_emu.image.runner import Runner, find_tool
from csd_emu.util.progress import Silent
from firmware_agent.common.errors import EnvironmentUnfit, ImageError
from tests.support.commands import wait_until


def python(program: str) -> list[str | Path]:
    return [sys.executable, "-c", program]


def test_output_comes_back_and_the_environment_is_added() -> None:
    program = python("import os; print(os.environ['CSD_X'] + os.environ['LC_ALL'])")
    assert Runner().run(program, "try", environment={"CSD_X": "1"}) == "1C.UTF-8\n"


def test_a_failure_quotes_the_errors_not_the_chatter() -> None:
    program = python("import sys; print('chatter\\nE: no such package\\nmore', file=sys.stderr); sys.exit(3)")
    with pytest.raises(ImageError, match=r"cannot fetch it \(exit code 3\): E: no such package; do this"):
        Runner().run(program, "fetch it", remedy="do this")
    assert Runner().run(program, "fetch it", accept=(3,)) == ""


def test_a_full_disk_is_said_to_be_full() -> None:
    program = python("import sys; sys.exit('tar: x: No space left on device')")
    with pytest.raises(ImageError, match="free some disk space"):
        Runner().run(program, "unpack it")


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(ImageError, match="cannot be started"):
        Runner().run(["/nowhere/tool"], "try")
    with pytest.raises(EnvironmentUnfit, match="install the package tools"):
        find_tool("no-such-tool-of-csd", "tools")


def test_a_pipe_carries_data_and_both_ends_can_fail(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    sink = python(f"import sys; open({str(copy)!r}, 'w').write(sys.stdin.read())")
    Runner().pipe(python("print('data')"), sink, "copy")
    assert copy.read_text() == "data\n"
    with pytest.raises(ImageError, match=r"\(exit code 2\): error: bad archive"):
        Runner().pipe(python("import sys; print('error: bad archive', file=sys.stderr); sys.exit(2)"), sink, "unpack")
    with pytest.raises(ImageError, match=r"\(exit code 1\): refused"):
        Runner().pipe(python("print('data' * 100000)"), python("import sys; sys.exit('refused')"), "unpack")


def test_cancelling_kills_what_runs_and_starts_no_more(tmp_path: Path) -> None:
    late = tmp_path / "late"
    cancelled = threading.Event()
    runner = Runner(cancelled)
    threading.Timer(0.05, cancelled.set).start()
    with pytest.raises(ImageError, match="cancelled"):
        runner.run(python(f"import time; time.sleep(60); open({str(late)!r}, 'w')"), "wait")
    with pytest.raises(ImageError, match="cancelled"):
        runner.run(python(f"open({str(late)!r}, 'w')"), "start")
    assert not late.exists()


def test_parallel_work_is_all_done() -> None:
    done: list[int] = []
    shown: list[float] = []
    Runner().parallel(done.append, range(5), shown.append)
    assert sorted(done) == list(range(5))
    assert shown == [0.2, 0.4, 0.6, 0.8, 1.0]


def test_a_failure_ends_what_runs_in_parallel(tmp_path: Path) -> None:
    runner = Runner()
    started, late = tmp_path / "started", tmp_path / "late"
    slow = f"import time; open({str(started)!r}, 'w'); time.sleep(60); open({str(late)!r}, 'w')"

    def work(item: int) -> None:
        if item == 0:
            runner.run(python(slow), "wait")
        else:
            wait_until(started.exists)
            raise ImageError("the second fails")

    with pytest.raises(ImageError, match="the second fails"):
        runner.parallel(work, [0, 1], lambda _: None)
    assert not late.exists()


def test_stages_tell_building_from_downloading() -> None:
    times = iter([10.0, 13.0, 20.0, 21.5])
    stages = Stages(Silent(), now=lambda: next(times))
    with stages.download("packages", "download"):
        pass
    with stages.build("disk", "fill"):
        pass
    assert stages.download_seconds == {"packages": 3.0}
    assert stages.build_seconds == {"disk": 1.5}
