"""A Flower `ClientApp` as a client program."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import nn

from firmware_agent.common.clients.client_program import ClientProgram
from firmware_agent.common.errors import ModelError
from firmware_agent.common.shipped_code import ShippedCode

APP = """
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    arrays = ArrayRecord({name: Array(each.numpy() + 1) for name, each in message.content["arrays"].items()})
    config = message.content["config"]
"""
REPLY = """
    rounds = context.state["kept"]["rounds"] + 1 if "kept" in context.state else 1
    context.state["kept"] = MetricRecord({"rounds": rounds})
    figures = {"train_loss": 0.5, "num-examples": context.csd.samples, "lr": config["lr"], "rounds": rounds}
    figures["place"] = context.node_config.get("partition-id", -1)
    figures["epochs"] = context.run_config.get("local-epochs", -1)
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(figures)}), reply_to=message)
"""


def run(body: str, config: dict[str, Any], state: dict[str, Any]) -> Any:
    program = ClientProgram.load(ShippedCode("client_app.py:app", APP + body))
    csd: Any = SimpleNamespace(model=nn.Linear(1, 1), loader=(), samples=7)
    before = csd.model.weight.item()
    reply = program.run(csd, config, {}, state)
    if reply.weights:
        assert reply.weights["weight"] == pytest.approx(before + 1)
    return reply


def test_an_app_trains_with_its_context_and_keeps_its_state() -> None:
    config, state = {"lr": 0.25, "partition-id": 2, "num-partitions": 3, "run/local-epochs": 4}, dict[str, Any]()
    for rounds in (1, 2):
        reply = run(REPLY, config, state)
        figures = {"num-examples": 7, "train_loss": 0.5, "loss": 0.5, "lr": 0.25, "rounds": rounds}
        assert reply.metrics == figures | {"place": 2, "epochs": 4}
        assert set(reply.weights) == {"weight", "bias"}
        state = {name: np.array(each) for name, each in state.items()}  # as it comes back from the host


def test_without_flower_on_the_host_it_has_no_place() -> None:
    metrics = run(REPLY, {"lr": 0.25}, {}).metrics
    assert (metrics["place"], metrics["epochs"]) == (-1, -1)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    return Message(Error(1, 'no records'), reply_to=message)\n", "replied with an error: no records"),
        ("    return Message(RecordDict(), reply_to=message)\n", "must reply with one ArrayRecord"),
        (
            "    return Message(RecordDict({'a': arrays, 'c': ConfigRecord({'x': 1})}), reply_to=message)\n",
            "must reply with one ArrayRecord",
        ),
    ],
)
def test_a_reply_that_cannot_be_returned_is_refused(body: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        run(body, {"lr": 0.1}, {})
