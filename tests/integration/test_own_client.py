"""Client programs and strategies of the user's own on native drives: the examples, and what may go wrong with them."""

import shutil
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import safetensors.numpy
import yaml
from torch import nn

from firmware_agent.common.clients.client_program import ClientProgram
from firmware_agent.common.clients.client_round import ClientRound
from firmware_agent.common.shipped_code import ShippedCode
from tests import ROOT
from tests.support.commands import Done, Workshop

Command = Callable[..., Done]
JOB: dict[str, Any] = {"model": "digits_cnn", "data": {"source": "digits"}, "rounds": 2, "client": "mine.py:train"}


def run(workshop: Workshop, csd_emu: Command, job: dict[str, Any], *more: Any) -> Done:
    return csd_emu("run", workshop.write("job.yaml", job), "--array", workshop.array, "--runs", workshop.runs, *more)


def weights(workshop: Workshop) -> dict[str, bytes]:
    content = (workshop.run_directory() / "model.safetensors").read_bytes()
    return {name: array.tobytes() for name, array in safetensors.numpy.load(content).items()}


def cost(workshop: Workshop) -> list[tuple[int, int]]:
    """Bytes of each drive in each round, host to drive and back."""
    return [(d["sent_bytes"], d["received_bytes"]) for record in workshop.rounds() for d in record["devices"]]


def example(name: str, workshop: Workshop) -> dict[str, Any]:
    shutil.copytree(ROOT / "examples" / name, workshop.folder, dirs_exist_ok=True)
    job: dict[str, Any] = yaml.safe_load((workshop.folder / "job.yaml").read_text())
    return job


def test_scaffold_by_hand_is_the_built_in_one_and_goes_on_as_it_would_have(
    workshop: Workshop, csd_emu: Command
) -> None:
    job = example("scaffold", workshop) | {"rounds": 3, "learning_rate": 0.05}
    done = run(workshop, csd_emu, job, "--json")
    assert done.code == 0, done.err
    losses, by_hand = [record["test_loss"] for record in workshop.rounds()], weights(workshop)
    costs = cost(workshop)
    workshop.runs.rename(workshop.folder / "by-hand")
    assert run(workshop, csd_emu, job | {"rounds": 2}).code == 0
    directory = workshop.run_directory()
    saved = (directory / "job.yaml").read_text()
    (directory / "job.yaml").write_text(saved.replace("rounds: 2", "rounds: 3"))
    done = csd_emu("run", "--resume", directory)
    assert done.code == 0, done.err
    assert weights(workshop) == by_hand
    assert cost(workshop) == costs  # that the host gave states back is in no figure
    workshop.runs.rename(workshop.folder / "resumed")
    built_in = {key: value for key, value in job.items() if key != "client"} | {"strategy": "scaffold"}
    assert run(workshop, csd_emu, built_in).code == 0
    assert [record["test_loss"] for record in workshop.rounds()] == pytest.approx(losses, rel=1e-4)
    workshop.assert_clean()


def test_drives_that_a_strategy_does_not_ask_are_idle_and_the_thriftiest_train(
    workshop: Workshop, csd_emu: Command
) -> None:
    done = run(workshop, csd_emu, example("energy", workshop) | {"rounds": 3}, "--json")
    assert done.code == 0, done.err
    first, *others = workshop.rounds()
    joules = {part["device"]: sum(part["energy_joules"].values()) / part["samples"] for part in first["devices"]}
    cheapest = sorted(joules, key=joules.__getitem__)[:2]
    assert first["idle"] == []
    assert {frozenset(part["device"] for part in record["devices"]) for record in others} == {frozenset(cheapest)}
    workshop.assert_clean()


@pytest.mark.parametrize("name", ["fedbn", "noise"])
def test_an_update_is_transformed_or_kept_in_part_in_the_drive(name: str, workshop: Workshop, csd_emu: Command) -> None:
    job = example(name, workshop) | {"rounds": 2}
    done = run(workshop, csd_emu, job, "--json")
    assert done.code == 0, done.err
    sent, returned = (
        sum(part[f"{way}_bytes"] for part in workshop.rounds()[1]["devices"]) for way in ("sent", "received")
    )
    if name == "fedbn":
        assert returned < sent  # normalisation does not cross
    else:
        assert workshop.rounds()[0]["metrics"]["train_update_norm"] > 0
        own = [part["metrics"]["update_norm"] for part in workshop.rounds()[0]["devices"]]
        assert min(own) <= workshop.rounds()[0]["metrics"]["train_update_norm"] <= max(own)
    workshop.assert_clean()


def test_a_strategy_says_how_long_a_drive_trains(workshop: Workshop, csd_emu: Command) -> None:
    workshop.write(
        "mine.py",
        "from csd_emu.extend import FedAvg\n"
        "class Uneven(FedAvg):\n"
        "    def configure(self, round, drives):\n"
        "        return {name: {'epochs': number, 'batch_size': 16} for number, name in enumerate(drives, 1)}\n"
        "    def evaluate(self, round, weights):\n"
        "        return {'round_again': round}\n",
    )
    job = {key: value for key, value in JOB.items() if key != "client"} | {"strategy": "mine.py:Uneven"}
    assert run(workshop, csd_emu, job).code == 0
    last = workshop.rounds()[-1]
    assert last["metrics"] == {"round_again": 2.0}
    one, two = last["devices"]
    assert (one["batch_size"], two["batch_size"]) == (16, 16)
    assert two["samples"] in range(2 * one["samples"] - 2, 2 * one["samples"] + 3)
    workshop.assert_clean()


MEETING = """import numpy as np
from csd_emu.extend import FedAvg

class Meeting(FedAvg):
    def exchange(self, round, number, tensors):
        first, *others = tensors.values()
        mean = {name: np.mean([first[name], *(each[name] for each in others)], axis=0) for name in first}
        return dict.fromkeys(tensors, mean)

def train(model, loader, csd, config, poison=0):
    for _ in range(2):
        optimizer = csd.optimizer()
        for batch in loader.passes(1):
            loss = csd.loss(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        means = csd.exchange({name: p * (float("nan") if poison == config["round"] else 1)
                              for name, p in model.named_parameters()})
        for name, parameter in model.named_parameters():
            parameter.data.copy_(means[name])
    return {"first": next(iter(means.values())).sum(), **dict(model.state_dict())}
"""


def test_drives_exchange_tensors_within_a_round(workshop: Workshop, csd_emu: Command) -> None:
    workshop.write("mine.py", MEETING)
    job = JOB | {"strategy": "mine.py:Meeting"}
    assert run(workshop, csd_emu, job).code == 0
    left = [safetensors.numpy.load_file(each) for each in sorted(workshop.run_directory().glob("*.safetensors"))]
    assert left
    # Three times the weights cross each way: twice within the round, and once at its end.
    size_bytes = sum(array.nbytes for array in left[-1].values())
    for sent, received in cost(workshop):
        assert 3 * size_bytes < min(sent, received) < 3.2 * size_bytes + 4096
    by_hand = weights(workshop)
    workshop.runs.rename(workshop.folder / "first")
    assert run(workshop, csd_emu, job).code == 0
    assert weights(workshop) == by_hand
    workshop.runs.rename(workshop.folder / "again")
    done = run(workshop, csd_emu, job | {"client": {"name": "mine.py:train", "poison": 2}})
    assert done.code == 1, done.err
    assert "csd.exchange: 0.weight has values that are no finite numbers" in " ".join(done.err.split())
    assert "csd-0" in done.err
    workshop.assert_clean()


def test_an_asynchronous_round_ends_with_the_updates_that_it_takes(workshop: Workshop, csd_emu: Command) -> None:
    job = {key: value for key, value in JOB.items() if key != "client"} | {
        "data": {"source": "digits", "partition": {"quantity": 2}},
        "strategy": {"name": "fedbuff", "buffer": 1},
        "rounds": 6,
    }
    assert run(workshop, csd_emu, job).code == 0
    records, whole = workshop.rounds(), weights(workshop)
    assert [len(record["devices"]) for record in records] == [2, 1, 1, 1, 1, 1]
    assert any(record["metrics"]["staleness"] > 0 for record in records)
    starts = [record["start_seconds"] for record in records]
    lengths = [record["array_seconds"] for record in records]
    assert starts[1:] == pytest.approx(np.cumsum(lengths)[:-1])
    both = [sum(p["device_seconds"].values()) for p in records[0]["devices"]]
    assert lengths[0] < max(both)
    workshop.runs.rename(workshop.folder / "whole")
    assert run(workshop, csd_emu, job | {"rounds": 3}).code == 0
    saved = workshop.run_directory() / "job.yaml"
    saved.write_text(saved.read_text().replace("rounds: 3", "rounds: 6"))
    assert csd_emu("run", "--resume", workshop.run_directory()).code == 0
    assert weights(workshop) == whole
    assert run(workshop, csd_emu, job | {"straggler": {"deadline": 1}}).code == 2
    workshop.assert_clean()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def train():\n    return 3", "client 'mine.py:train': returned int; return a mapping of names"),
        ("def train():\n    1 / 0", "ZeroDivisionError: division by zero (mine.py, line 2)"),
        ("import os\ndef train():\n    os.fork()", "(mine.py, line 3)"),
        ("def train(modle):\n    pass", "client.modle: is missing"),
        ("def trian():\n    pass", "cannot be imported"),
        (
            "import torch\ndef train(model):\n    return {'2.weight': torch.ones(3)}",
            "returned",
        ),
        (
            "import torch\ndef train(model):\n    return {'a': torch.tensor([float('nan')])}",
            "no finite numbers in a trial",
        ),
        ("import nothing_like_it\ndef train(): pass", "cannot be imported"),
    ],
)
def test_a_program_that_cannot_train_is_refused_before_anything_starts(
    text: str, message: str, workshop: Workshop, csd_emu: Command
) -> None:
    workshop.write("mine.py", text)
    done = run(workshop, csd_emu, JOB)
    assert done.code == 2, done.err
    assert message in " ".join(done.err.split())
    assert not workshop.runs.exists()
    workshop.assert_clean()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise KeyError('my bug')", "in round 2: KeyError: 'my bug'"),
        ("return {'late': 1}", "returned the number late, and not so in its trial"),
        ("return {'more': torch.ones(3)}", "returned"),
        ("return {'fc.weight': torch.full((1,), float('nan'))}", "returned"),
    ],
)
def test_a_program_that_fails_in_a_later_round_is_named_with_its_drive(
    text: str, message: str, workshop: Workshop, csd_emu: Command
) -> None:
    workshop.write(
        "mine.py", f"import torch\ndef train(csd):\n    csd.fit()\n    if csd.number == 2:\n        {text}\n"
    )
    done = run(workshop, csd_emu, JOB)
    assert done.code == 1
    assert "the client program failed on csd-0" in done.err
    assert "mine.py" in done.err
    assert message in " ".join(done.err.split())
    assert len(workshop.rounds()) == 1
    assert csd_emu("report", workshop.run_directory()).code == 0
    workshop.assert_clean()


PLAIN = """import torch

def train(model, csd, loader):
    if csd.number == 2:
        return
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for batch in loader:
        optimizer.zero_grad()
        csd.loss(batch).backward()
        optimizer.step()
"""


def test_a_loop_of_plain_torch_trains_and_one_that_does_nothing_is_told(workshop: Workshop, csd_emu: Command) -> None:
    workshop.write("mine.py", PLAIN)
    done = run(workshop, csd_emu, JOB)
    assert done.code == 0, done.err
    told = "in round 2: client 'mine.py:train' returned the weights as they were sent"
    events = [record for record in workshop.records(workshop.run_directory()) if record["kind"] == "event"]
    notes = [event for event in events if event["what"] == "note" and event["detail"].startswith(told)]
    assert sorted(event["device"] for event in notes) == ["csd-00", "csd-01"]
    workshop.assert_clean()


def test_a_program_that_does_not_end_is_named_when_the_watchdog_does(workshop: Workshop, csd_emu: Command) -> None:
    workshop.write("mine.py", "def train(csd):\n    csd.fit()\n    while csd.samples > 10:\n        pass\n")
    done = run(workshop, csd_emu, JOB | {"watchdog": "3 s"})
    assert done.code == 1
    assert "client 'mine.py:train' has not returned; raise watchdog" in " ".join(done.err.split())
    workshop.assert_clean()


STRATEGY = """
from csd_emu.extend import FedAvg


class Mine(FedAvg):
    def configure(self, round, drives):
        {body}
"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return {}", "configure returned nobody"),
        ("return 3", "configure returned int"),
        ("return {'nobody': {}}", "configure names 'nobody'; the drives are csd-00, csd-01"),
        ("return {name: {'mu': 1} for name in drives}", "'mu' is heard by no drive"),
        ("return {name: {'epochs': -1} for name in drives}", "'epochs' is -1; make it a whole number, 1 to 10000"),
        ("return {name: {'epochs': 'two'} for name in drives}", "'epochs' is 'two'"),
        ("return [name for name in 1]", "configure failed: TypeError"),
    ],
)
def test_what_a_strategy_cannot_say_is_refused_before_anything_starts(
    body: str, message: str, workshop: Workshop, csd_emu: Command
) -> None:
    workshop.write("mine.py", STRATEGY.format(body=body))
    job = {key: value for key, value in JOB.items() if key != "client"} | {"strategy": "mine.py:Mine"}
    done = run(workshop, csd_emu, job)
    assert done.code == 2, done.err
    assert message in " ".join(done.err.split())
    assert not workshop.runs.exists()
    workshop.assert_clean()


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("os.fork()", "start a process"),
        ("subprocess.run(['true'])", "start a process"),
        ("socket.create_connection(('127.0.0.1', 9))", "use the network"),
        ("open('here', 'w')", "write to here"),
        ("os.remove('here')", "change files"),
    ],
)
def test_a_program_computes_and_reads_and_does_nothing_else(line: str, what: str) -> None:
    text = f"import os, socket, subprocess\ndef train():\n    open('/proc/self/stat').close()\n    {line}"
    program = ClientProgram.load(ShippedCode("mine.py:train", text))
    with pytest.raises(PermissionError, match=what):
        program.run(cast(ClientRound, SimpleNamespace(model=nn.Linear(1, 1), loader=())), {}, {}, {})
    socket.socket().close()  # who is no program may


def test_halves_that_do_not_fit_are_refused(workshop: Workshop, csd_emu: Command) -> None:
    workshop.write("mine.py", "def train(csd):\n    csd.fit()\n")
    done = run(workshop, csd_emu, JOB | {"strategy": "scaffold"})
    assert done.code == 2
    told = "strategy scaffold needs the client program 'scaffold', and the job names 'mine.py:train'"
    assert told in " ".join(done.err.split())
    done = run(workshop, csd_emu, JOB | {"strategy": "fednova"})
    assert "strategy fednova: weighs updates by the steps of the drives' own loop" in " ".join(done.err.split())
    bare = {key: value for key, value in JOB.items() if key != "client"}
    done = run(workshop, csd_emu, bare | {"strategy": "scaffold", "optimizer": "Adam"})
    assert "client scaffold: takes its control variates from steps of SGD" in " ".join(done.err.split())
    workshop.write("half.py", "from csd_emu.extend import FedAvg\nclass Half(FedAvg):\n    client = 'mine.py:train'\n")
    done = run(workshop, csd_emu, bare | {"strategy": "half.py:Half"})
    assert "write client: mine.py:train" in " ".join(done.err.split())
    done = run(workshop, csd_emu, JOB | {"mode": "sync"})
    assert "client is for mode: federated" in " ".join(done.err.split())
    workshop.assert_clean()
