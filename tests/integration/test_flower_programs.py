"""Programs of Flower's on native drives, in both halves."""

import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.commands import Done, Workshop, wait_until

Command = Callable[..., Done]
SERVER = """
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

app = ServerApp()


def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


@app.main()
def main(grid, context):
    config = context.run_config
    train_config = ConfigRecord({"lr": config["learning-rate"]})
    print("a program's own words")
    FedAvg(fraction_evaluate=0.0).start(
        grid, ArrayRecord(net().state_dict()), config["num-server-rounds"], train_config=train_config, evaluate_fn=judge
    )


def judge(number, arrays):
    if number == 2:
        raise KeyError("my bug")
"""
CLIENT = """
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

app = ClientApp()


@app.train()
def train(message, context):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=message.content["config"]["lr"])
    count = 0
    for batch in context.csd.loader:
        loss = nn.functional.cross_entropy(model(context.csd.inputs(batch)), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count += len(batch["label"])
    figures = {"train_loss": float(loss.detach()), "num-examples": count, "place": context.node_config["partition-id"]}
    records = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(figures)}
    return Message(RecordDict(records), reply_to=message)
"""
JOB: dict[str, Any] = {
    "model": "server_app.py:net",
    "data": {"source": "digits"},
    "strategy": {"name": "server_app.py:app", "run_config": {"learning-rate": 0.05}},
    "rounds": 1,
}


@pytest.fixture
def flowers(workshop: Workshop) -> Workshop:
    """A workshop with both apps."""
    workshop.write("server_app.py", SERVER)
    workshop.write("client_app.py", CLIENT)
    return workshop


def test_a_server_app_and_a_client_app_train(flowers: Workshop, csd_emu: Command) -> None:
    job = flowers.write("job.yaml", JOB | {"client": "client_app.py:app"})
    done = csd_emu("run", job, "--array", flowers.array, "--runs", flowers.runs, "--json")
    assert done.code == 0, done.err
    summary = done.json("run")  # the program's words are no part of it
    assert summary["accuracy"] > 0.3
    (record,) = flowers.rounds()
    assert record["metrics"]["train_num-examples"] > 1
    done = csd_emu("run", "--resume", flowers.run_directory())
    assert "this run has finished" in done.out, done.err
    flowers.assert_clean()


def test_a_program_that_fails_later_is_named_with_its_line(flowers: Workshop, csd_emu: Command) -> None:
    job = flowers.write("job.yaml", JOB | {"rounds": 3})
    done = csd_emu("run", job, "--array", flowers.array, "--runs", flowers.runs)
    line = 1 + SERVER.splitlines().index('        raise KeyError("my bug")')
    assert done.code == 1
    assert f'File "server_app.py", line {line}, in judge' in done.err
    assert "the strategy failed on host in round 2: KeyError: 'my bug'" in done.err
    assert len(flowers.rounds()) == 1
    resumed = csd_emu("run", "--resume", flowers.run_directory())
    assert resumed.code == 2
    assert "a Flower program keeps its own state and cannot be resumed; start the run anew" in resumed.err
    assert resumed.err.count("a program's own words") == 1  # of its trial: nothing has started
    flowers.assert_clean()


def test_a_signal_ends_a_run_whose_program_does_not_go_on(flowers: Workshop) -> None:
    asleep = flowers.folder / "asleep"
    body = f"open({str(asleep)!r}, 'w').close(); __import__('time').sleep(600)"
    flowers.write("server_app.py", SERVER.replace('raise KeyError("my bug")', body))
    job = flowers.write("job.yaml", JOB | {"rounds": 3})
    process = flowers.start("run", job, "--array", flowers.array, "--runs", flowers.runs)
    wait_until(asleep.exists, 60)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    flowers.assert_clean()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "digits_cnn"}, "first_weights must return the tensors"),
        ({"strategy": {"name": "server_app.py:app"}}, "KeyError: 'learning-rate' (server_app.py, line 17)"),
        ({"strategy": {"name": "server_app.py:app", "rounds": 2}}, "strategy.rounds: unknown key"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_starts(
    changes: dict[str, Any], message: str, flowers: Workshop, csd_emu: Command
) -> None:
    job = flowers.write("job.yaml", JOB | changes)
    done = csd_emu("run", job, "--array", flowers.array, "--runs", flowers.runs)
    assert done.code == 2, done.err
    assert message in " ".join(done.err.split())
    assert not flowers.runs.exists()
