"""Rounds of a client program and a strategy in this process, without drives; and SCAFFOLD in plain torch."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from firmware_agent.common.clients.client_program import ClientProgram
from firmware_agent.common.clients.client_round import ClientRecords, ClientRound, NoWatch
from firmware_agent.common.losses.objective import Objective, ObjectiveSpec
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.slices import Array
from firmware_agent.common.weights import load_arrays, state_arrays
from firmware_agent.training.sgd import LocalSgd
from host.policies.aggregation import Contribution, DriveHistory

Shard = Mapping[str, Array]


def run_client_rounds(
    code: ShippedCode,
    strategy: Any,
    model: nn.Module,
    shards: Sequence[Shard],
    config: Mapping[str, float],
    rounds: int,
) -> dict[str, Array]:
    """Return the weights after some rounds; each drive passes once over its shard, in its order.

    Args:
        code: the client program.
        strategy: aggregates, and configures if it does.
        model: its weights are the first ones; float64.
        shards: of the drives, field -> (records, ...).
        config: ``batch_size`` and ``learning_rate``.
        rounds: how many.
    """
    objective = Objective.of_spec(ObjectiveSpec(ShippedCode("mean_squared_error"), ("x",), 1.0), "float64")
    program, names = ClientProgram.load(code), [f"drive-{number}" for number in range(len(shards))]
    weights = {name: array.copy() for name, array in state_arrays(model).items()}
    states: dict[str, dict[str, Any]] = {name: {} for name in names}
    for number in range(1, rounds + 1):
        drives = {name: DriveHistory(name, len(shard["x"])) for name, shard in zip(names, shards, strict=True)}
        said = strategy.configure(number, drives) if hasattr(strategy, "configure") else {name: {} for name in names}
        parts = []
        for name, shard in zip(names, shards, strict=True):
            own = copy.deepcopy(model)
            load_arrays(own, weights)
            records = ClientRecords(_taker(shard), _in_order(len(shard["x"])), len(shard["x"]))
            begun = ClientRound(
                *(number, own.train(), objective, records, (1, int(config["batch_size"]))),
                *(partial(LocalSgd, own.parameters(), config["learning_rate"], 0.0), NoWatch()),
            )
            reply = program.run(begun, {"momentum": 0.0, **config}, said[name], states[name])
            parts.append(Contribution(reply.weights, len(shard["x"]), begun.steps, name, reply.extras, reply.metrics))
        weights = strategy.aggregate(weights, parts)
    return weights


def plain_scaffold(
    model: nn.Module, shards: Sequence[Shard], config: Mapping[str, float], rounds: int
) -> dict[str, Array]:
    """Return the weights after some rounds of SCAFFOLD, option II, all drives taking part, by autograd alone."""
    server = [each.detach().clone() for each in model.parameters()]
    control = [torch.zeros_like(each) for each in server]
    own = [[torch.zeros_like(each) for each in server] for _ in shards]
    rate, size = config["learning_rate"], int(config["batch_size"])
    for _ in range(rounds):
        ended, changes = [], []
        for drive, shard in enumerate(shards):
            local = copy.deepcopy(model)
            steps, held = 0, list(local.parameters())
            with torch.no_grad():
                for parameter, value in zip(held, server, strict=True):
                    parameter.copy_(value)
            for start in range(0, len(shard["x"]), size):
                x, y = (torch.from_numpy(shard[name][start : start + size]) for name in ("x", "y"))
                gradients = torch.autograd.grad(((local(x) - y) ** 2).mean(), held)
                with torch.no_grad():
                    for parameter, gradient, c, c_i in zip(held, gradients, control, own[drive], strict=True):
                        parameter.sub_(rate * (gradient - c_i + c))
                steps += 1
            news = [
                c_i - c + (x - parameter.detach()) / (steps * rate)
                for c_i, c, x, parameter in zip(own[drive], control, server, held, strict=True)
            ]
            changes.append([new - old for new, old in zip(news, own[drive], strict=True)])
            own[drive] = news
            ended.append([parameter.detach() for parameter in held])
        server = [torch.stack(each).mean(0) for each in zip(*ended, strict=True)]
        control = [c + torch.stack(each).mean(0) for c, each in zip(control, zip(*changes, strict=True), strict=True)]
    return {name: value.numpy() for (name, _), value in zip(model.named_parameters(), server, strict=True)}


def largest_difference(one: Mapping[str, Array], other: Mapping[str, Array]) -> float:
    """Return the largest difference of two models' weights, over the largest weight."""
    most = max(float(np.abs(array).max()) for array in other.values())
    return max(float(np.abs(one[name].astype(float) - other[name].astype(float)).max()) for name in other) / most


def _taker(shard: Shard) -> Any:
    return lambda places: {name: column[places] for name, column in shard.items()}


def _in_order(count: int) -> Any:
    return lambda: np.arange(count)
