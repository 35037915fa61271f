"""Flower's `Grid` with drives as its nodes; imports flwr, which need not be installed for anything else.

The program of a `ServerApp` runs in a thread of its own. It and the run take turns: while one of them works, the other
waits, so that what they share needs no lock and the same run repeats.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import random
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import torch
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy as FlowerAlgorithm
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from firmware_agent.common.errors import PluginFailed
from firmware_agent.common.slices import Array
from host.policies.aggregation.strategy import Contribution, DriveHistory, RunStart

_MOST_SECONDS = 3600.0
_RUN, _HOST = 1, 1
# What Flower's programs call what a drive hears without a client program.
_HEARD = {"lr": "learning_rate", "learning_rate": "learning_rate", "local_epochs": "epochs"}


class RunOver(BaseException):
    """Raised in a program that waits for drives when the run has ended; no error of the program's."""


class CsdGrid(Grid):  # type: ignore[misc]
    """The nodes are the drives, numbered from 2 in the array's order.

    Train messages become a round of the run, evaluate messages are answered by the host: what the weights are worth on
    the held-out records.

    Attributes:
        arrays: the model that the program sent last; None if it sent none since drives returned theirs.
    """

    def __init__(self, run: RunStart) -> None:
        """Seed the global generators of Python, NumPy and torch by the job, for the program's draws."""
        self._run, self._devices = run, dict(enumerate(run.devices, _HOST + 1))
        self._samples = dict.fromkeys(run.devices, 1)  # of those that are there
        self._asked: dict[str, Message] = {}
        self._replies: dict[str, Message] = {}
        self._sent = self._rounds = 0
        self._over = self._ended = False
        self._turns, self._answered = SimpleQueue[BaseException | None](), SimpleQueue[None]()
        self.arrays: ArrayRecord | None = None
        random.seed(run.seed)
        np.random.seed(run.seed)
        torch.manual_seed(run.seed)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = _RUN, _HOST, _HOST

    def set_run(self, run: Run) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Run:
        """The run, of which Flower's records say nothing."""
        return Run.create_empty(_RUN)

    def create_message(self, content: RecordDict, *fields: Any, **named: Any) -> Message:
        """Return a message to a node (see Flower)."""
        names = ("message_type", "dst_node_id", "group_id", "ttl")
        return Message(content, **dict(zip(names, fields, strict=False)), **named)

    def get_node_ids(self) -> list[int]:
        """Return the numbers of the drives that are there."""
        return [node for node, device in self._devices.items() if device in self._samples]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Take messages for the next round, and answer evaluate messages; return a name for each.

        Raises:
            PluginFailed: drives cannot do what one asks.
        """
        pushed = list(messages)
        judged: tuple[ArrayRecord | None, dict[str, float]] = None, {}
        for message in pushed:
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            device, record = self._devices.get(node, ""), self._model_in(message)
            if kind not in (MessageType.TRAIN, MessageType.EVALUATE) or not device:
                told = f"a message {kind!r} for node {node}: drives hear 'train' and 'evaluate'"
                raise _refusal(f"{told}; the nodes are {', '.join(map(str, self._devices))}")
            self._sent += 1
            message.metadata.__dict__["_message_id"] = str(self._sent)
            if kind == MessageType.TRAIN:
                if device in self._asked or (self._asked and record != self.arrays):
                    raise _refusal("drives hear one train message a round, all of them with the same weights")
                self._asked[device] = message
            else:
                judged = judged if record is judged[0] else (record, self._judge(record))
                figures = {"num-examples": self._samples.get(device, 1), **judged[1]}
                self._reply(message, RecordDict({"metrics": MetricRecord(figures)}))
            self.arrays = record
        return [message.metadata.message_id for message in pushed]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return replies; those of drives are waited for, until the run's next round is done."""
        wanted = list(message_ids)
        if any(message.metadata.message_id in wanted for message in self._asked.values()):
            self._turns.put(None)
            self._answered.get()
            if self._over:
                raise RunOver
        return [self._replies.pop(each) for each in wanted if each in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Return the replies to messages; the run's own deadlines hold, not `timeout`."""
        return self.pull_messages(self.push_messages(messages))

    def begin(self, program: Callable[[CsdGrid, RunStart], object]) -> dict[str, Array]:
        """Start a program, and return the weights that it sends first."""
        threading.Thread(target=self._serve, args=(program,), name="ServerApp", daemon=True).start()
        return self._await_model()

    def close(self) -> None:
        """End the program if it still waits for drives."""
        self._over = True
        self._answered.put(None)

    def instructions(self, drives: Mapping[str, DriveHistory]) -> dict[str, dict[str, Any]]:
        """Return what the program says to each of these drives.

        Raises:
            PluginFailed: it has ended.
        """
        if self._ended:
            told = f"it ended after {self._rounds} rounds, and the job has {self._run.rounds}"
            raise _refusal(f"{told}; write rounds: {self._rounds}, or have it ask for more")
        self._samples = {name: drive.samples for name, drive in drives.items()}
        return {device: self._said(self._asked[device]) for device in drives if device in self._asked}

    def answer(self, contributions: Sequence[Contribution]) -> dict[str, Array]:
        """Reply to the round's messages, and return the weights that the program makes of them."""
        parts = {part.device: part for part in contributions}
        for device, message in self._asked.items():
            if (part := parts.get(device)) is None:
                self._reply(message, Error(0, f"{device} returned nothing in time"))
                continue
            metrics = {"num-examples": part.samples, "train_loss": part.loss, **part.metrics}
            arrays = {"arrays": to_record(part.weights), "metrics": MetricRecord(metrics)}
            self._reply(message, RecordDict(arrays | ({"tensors": to_record(part.tensors)} if part.tensors else {})))
        self._asked, self.arrays, self._rounds = {}, None, self._rounds + 1
        self._answered.put(None)
        return self._await_model()

    def _await_model(self) -> dict[str, Array]:
        """Let the program work until it waits for drives or ends, and return its model."""
        try:
            with contextlib.redirect_stdout(sys.stderr):  # what the program prints is no output of the command's
                failed = self._turns.get(timeout=_MOST_SECONDS)
        except Empty:
            told = f"it has asked nothing of the drives for {_MOST_SECONDS:.0f} s; is there a loop that does not end?"
            raise _refusal(told) from None
        if failed is not None:
            raise failed
        if self.arrays is None:
            told = "it ended without sending its model; have its strategy evaluate (fraction_evaluate above 0)"
            raise _refusal(told if self._rounds else "it asks no drive to train")
        return _to_arrays(self.arrays)

    def _serve(self, program: Callable[[CsdGrid, RunStart], object]) -> None:
        failed: BaseException | None = None
        try:
            program(self, self._run)
        except RunOver:
            return
        except BaseException as error:  # it is raised where the run waits
            failed = error
        self._ended = True
        self._turns.put(failed)

    def _model_in(self, message: Message) -> ArrayRecord:
        records = list(message.content.array_records.values())
        if len(records) != 1:
            raise _refusal(f"a message has {len(records)} ArrayRecords; send one, the model's weights by name")
        return records[0]

    def _said(self, message: Message) -> dict[str, Any]:
        sent = {name: value for record in message.content.config_records.values() for name, value in record.items()}
        if self._run.has_client:
            places = {"partition-id": list(self._devices).index(message.metadata.dst_node_id)}
            return sent | places | {"num-partitions": len(self._devices)}
        plain = {name.replace("-", "_"): value for name, value in sent.items() if name != "server-round"}
        return {_HEARD.get(name, name): value for name, value in plain.items()}

    def _reply(self, message: Message, content: RecordDict | Error) -> None:
        self._replies[message.metadata.message_id] = Message(content, reply_to=message)

    def _judge(self, record: ArrayRecord) -> dict[str, float]:
        judged = self._run.judge(_to_arrays(record))
        figures = {"loss": judged.loss, "accuracy": judged.accuracy, **judged.metrics}
        return {name: value for name, value in figures.items() if math.isfinite(value)}


def _refusal(why: str) -> PluginFailed:
    return PluginFailed(f"ServerApp: {why}", "strategy")


def to_record(arrays: Mapping[str, Array]) -> ArrayRecord:
    """Return arrays as Flower has them."""
    return ArrayRecord({name: FlowerArray(np.asarray(array)) for name, array in arrays.items()})


def _to_arrays(record: ArrayRecord) -> dict[str, Array]:
    return {name: array.numpy() for name, array in record.items()}


def _note_result(start: Callable[..., Any]) -> Callable[..., Any]:
    """Return Flower's `Strategy.start`, which then tells a `CsdGrid` the model that it ended with."""

    @functools.wraps(start)
    def noting(self: Any, grid: Any, *arguments: Any, **named: Any) -> Any:
        result = start(self, grid, *arguments, **named)
        if isinstance(grid, CsdGrid) and result.arrays:
            grid.arrays = result.arrays
        return result

    return noting


logging.getLogger("flwr").handlers.clear()  # the console of csd-emu has what it logs
FlowerAlgorithm.start = _note_result(FlowerAlgorithm.start)
