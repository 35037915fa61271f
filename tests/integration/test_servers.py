"""Several servers as processes on this machine: they train as one, and who does not fit or is lost is dealt with."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.support.commands import temporary_workshop, wait_until
from tests.support.server_processes import ARRAY, JOB, LONGEST_SECONDS, Servers, assert_close, ended


@pytest.fixture
def servers() -> Iterator[Servers]:
    with temporary_workshop(Servers) as made:
        try:
            yield made
        finally:
            made.close()


def another_version(folder: Path) -> Path:
    """A copy of the code in which one line is another."""
    for package in ("csd_emu", "csd_lab", "firmware_agent", "host"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "host" / "training" / "multi_server" / "turns.py").open("a") as file:
        file.write("# another version\n")
    return folder


@pytest.mark.long
def test_two_servers_train_as_one_and_who_differs_is_turned_away(servers: Servers) -> None:
    job = servers.write("job.yaml", JOB)
    other = servers.write("other.yaml", JOB | {"learning_rate": 0.02})
    servers.write_servers(membership={"min": 2, "wait": "180 s"})
    with servers.store():
        first = servers.train("a", job)  # which waits for the second
        wait_until(lambda: any(servers.home_of("a").rglob("identity.tar")), LONGEST_SECONDS)
        refused = ended(servers.train("b", other, "other"), 2)
        version = another_version(servers.folder / "code")
        outdated = ended(servers.train("b", job, "other", version), 2)
        second = servers.train("b", job)
        for process in (first, second):
            ended(process)
    assert "the job differ" in refused
    assert "the version of csd-emu differ" in outdated
    assert not list(servers.folder.glob("runs-other/*"))
    assert [step["step"] for step in servers.steps_of("a")] == list(range(1, 11))
    for step in servers.steps_of("b"):
        assert step["servers"]["present"] == ["a", "b"]
    servers.assert_equal_weights("a", "b")
    servers.assert_nothing_left()
    # The same drives on one server; float32 sums in another order.
    four = servers.write("four.yaml", ARRAY | {"devices": [{"profile": "newport", "count": 4}]})
    ended(servers.go("a", "run", job, "--array", four, "--runs", servers.folder / "runs-one"))
    assert_close(servers.weights_of("one"), servers.weights_of("a"), 1e-4)


@pytest.mark.long
def test_a_server_that_is_killed_is_not_waited_for_and_catches_up_when_it_comes_back(servers: Servers) -> None:
    job = servers.write("job.yaml", JOB | {"rounds": 40})
    # Two drives' gradients of 150 kB take 0.3 s each way: the server that is left must not be done before the other one
    # is back.
    link = {"bandwidth": "1 MB/s", "latency": "100 us", "shaped": "relay"}
    servers.write("array.yaml", ARRAY | {"clock": "wall", "link": link})
    with servers.store():
        a, b = (servers.train(name, job) for name in ("a", "b"))
        wait_until(lambda: len(servers.steps_of("b")) >= 10, LONGEST_SECONDS)
        servers.kill("b")
        b.communicate()
        wait_until(lambda: any(step["servers"]["present"] == ["a"] for step in servers.steps_of("a")), LONGEST_SECONDS)
        again = servers.train("b", job, "again")
        ended(a)
        ended(again)
    steps = servers.steps_of("a")
    assert [step["step"] for step in steps] == list(range(1, 201))
    present = [name for name, _ in itertools.groupby(tuple(step["servers"]["present"]) for step in steps)]
    assert present[:2] == [("a", "b"), ("a",)]
    assert present[-1] == ("a", "b")
    back = servers.steps_of("again")
    assert [step["step"] for step in back] == list(range(back[0]["step"], 201))
    servers.assert_equal_weights("a", "again")
    servers.assert_nothing_left()


@pytest.mark.long
def test_servers_that_add_up_every_few_steps_end_with_the_same_weights(servers: Servers) -> None:
    job = servers.write("job.yaml", JOB)
    servers.write_servers(membership={"min": 2, "wait": "180 s"}, reduce_every=3)
    with servers.store():
        for process in [servers.train(name, job) for name in ("a", "b")]:
            ended(process)
    servers.assert_equal_weights("a", "b")
    for server in ("a", "b"):
        steps = servers.steps_of(server)
        assert [step["step"] for step in steps] == list(range(1, 11))
        # A window of three steps, and one that the round ends.
        sums = [step["step"] for step in steps if step["servers"]["reduce_seconds"]]
        assert sums == [3, 5, 8, 10]
    servers.assert_nothing_left()


@pytest.mark.long
def test_servers_that_add_up_every_few_steps_choose_drives_in_whole_windows(servers: Servers) -> None:
    planner = {"prefer": "time", "steps": 2}
    job = servers.write("job.yaml", JOB | {"planner": planner, "rounds": 3, "sync": {"round_steps": 12}})
    servers.write_servers(membership={"min": 2, "wait": "180 s"}, reduce_every=3, link={"bandwidth": "10 MB/s"})
    with servers.store():
        for process in [servers.train(name, job) for name in ("a", "b")]:
            ended(process)
    plans = []
    for server in ("a", "b"):
        (path,) = (servers.folder / f"runs-{server}").glob("*/plan.json")
        plans.append(json.loads(path.read_bytes()))
    first, second = plans
    assert first["nodes"] == second["nodes"]
    assert [(trial["name"], trial["steps"]) for trial in first["trials"]] == [
        (trial["name"], trial["steps"]) for trial in second["trials"]
    ]
    assert all(trial["steps"] % 3 == 0 for trial in first["trials"])
    servers.assert_equal_weights("a", "b")
    # A window begins after the one in which it was decided.
    steps = [step for step in servers.steps_of("a") if step["step"] > 3 + first["step"]]
    ends = [number for number, step in enumerate(steps) if step["servers"]["reduce_seconds"]]
    whole = [steps[end - 2 : end + 1] for end in ends if end >= 2 and end - 3 in (-1, *ends)]
    assert whole
    seconds = [sum(step["array_seconds"] for step in window) / 3 for window in whole]
    assert seconds == pytest.approx([first["chosen"]["step_seconds"]] * len(seconds), rel=0.03)
    servers.assert_nothing_left()


@pytest.mark.long
def test_a_server_that_is_killed_in_a_window_loses_that_window_alone(servers: Servers) -> None:
    job = servers.write("job.yaml", JOB | {"rounds": 10, "sync": {"round_steps": 20}})
    servers.write_servers(reduce_every=20, membership={"min": 1, "wait": "180 s", "silence": "10 s"})
    with servers.store():
        a, b = (servers.train(name, job) for name in ("a", "b"))
        wait_until(lambda: len(servers.steps_of("b")) >= 20, LONGEST_SECONDS)
        servers.kill("b")
        b.communicate()
        ended(a)
    steps = servers.steps_of("a")
    assert [step["step"] for step in steps] == list(range(1, 201))
    present = [step["servers"]["present"] for step in steps]
    begins = [number for number in range(1, 200) if present[number] != present[number - 1]]
    assert present[-1] == ["a"]
    assert ["a", "b"] in present
    assert all(begin % 20 == 0 for begin in begins)
    assert len(servers.steps_of("b")) % 20 == 0
