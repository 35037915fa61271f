"""A Flower `ServerApp`, or one of Flower's strategies, as a strategy of a job (Beutel et al., "Flower", 2020).

The program runs in a thread of its own on `CsdGrid`: what it sends to nodes is a round of the run. It and the run take
turns: while one of them works, the other waits, so that what they share needs no lock and the same run repeats.

This module imports flwr, so it is loaded only where a job has named something of Flower's.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import math
import random
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any

import flwr.app as flower
import numpy as np
import torch
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy as FlowerAlgorithm
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from firmware_agent.common.clients.flower_client import RUN_CONFIG
from firmware_agent.common.errors import CheckpointError, PluginFailed
from firmware_agent.common.slices import Array
from host.core.interrupts import INTERRUPTS
from host.policies.aggregation.strategy import Contribution, DriveHistory, FirstRound, Stateless

_MOST_SECONDS = 3600
_MOST_POLLS = 100  # for node ids, with nothing sent: Flower's strategies ask each second until there are enough
# What Flower's programs call what a drive hears without a client program.
_HEARD = {"lr": "learning_rate", "local-epochs": "epochs"}
# Of the last round no message may show the model; the result of Flower's own loop does.
_start_strategy = FlowerAlgorithm.start
logging.getLogger("flwr").handlers.clear()  # the console of csd-emu has what it logs


class CsdGrid(Grid):  # type: ignore[misc]
    """Flower's grid: the nodes are the drives, numbered from 2 in the array's order.

    Train messages become a round of the run. Evaluate messages are answered by the host: what the weights are worth on
    the held-out records.

    Attributes:
        arrays: the model that the program sent last; None if it sent none since drives returned theirs.
        rounds: that are done.
        ended: whether the program has.
    """

    def __init__(self, start: FirstRound) -> None:
        """Seed the global generators of Python, NumPy and torch by the job, for the program's draws."""
        self._start = start
        self._samples = dict.fromkeys(start.devices, 1)  # of those that are there
        self._asked, self._replies = dict[str, flower.Message](), dict[str, flower.Message]()
        self._sent, self._polls, self.rounds, self.ended = 0, 0, 0, False
        self._turns, self._answers = SimpleQueue[bool | BaseException](), SimpleQueue[bool]()
        self.arrays: flower.ArrayRecord | None = None
        self._judged: tuple[flower.ArrayRecord | None, dict[str, float]] = None, {}
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(start.seed)
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1

    @property
    def _devices(self) -> dict[int, str]:
        """Node -> drive."""
        return dict(enumerate(self._start.devices, 2))

    def set_run(self, run: Run) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Run:
        """The run, of which Flower's records say nothing."""
        return Run.create_empty(1)

    def create_message(
        self, content: flower.RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> flower.Message:
        """Return a message to a node."""
        return flower.Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return the numbers of the drives that are there.

        Raises:
            PluginFailed: the program waits for more of them, which cannot come while the run waits for it.
        """
        self._polls += 1
        if self._polls > _MOST_POLLS:
            raise _refusal(
                f"asked {_MOST_POLLS} times who is there and sent nothing: it needs more nodes than the "
                f"{len(self._samples)} that are there; add drives, or lower min_available_nodes"
            )
        return [node for node, device in self._devices.items() if device in self._samples]

    def push_messages(self, messages: Iterable[flower.Message]) -> list[str]:
        """Take messages for the next round, and answer evaluate messages; return a name for each.

        Raises:
            PluginFailed: drives cannot do what one asks.
        """
        return [self._push(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[flower.Message]:
        """Return replies; those of drives are waited for, until the run's next round is done."""
        wanted = list(message_ids)
        if any(message.metadata.message_id in wanted for message in self._asked.values()):
            self._turns.put(False)
            if not self._answers.get():
                sys.exit()  # the run is over: this thread ends
        return [self._replies.pop(each) for each in wanted if each in self._replies]

    def send_and_receive(
        self, messages: Iterable[flower.Message], *, timeout: float | None = None
    ) -> list[flower.Message]:
        """Return the replies to messages; the run's own deadlines hold, not `timeout`."""
        return self.pull_messages(self.push_messages(messages))

    def serve(self, program: Callable[[CsdGrid, FirstRound], object]) -> None:
        """Run a program to its end."""
        try:
            program(self, self._start)
            self._turns.put(True)
        except BaseException as error:  # it is raised where the run waits
            self._turns.put(error)

    def close(self) -> None:
        """End the program if it waits for drives."""
        self._answers.put(False)

    def await_model(self, let: Callable[[], None]) -> dict[str, Array]:
        """Call what lets the program work, until it waits for drives or ends; return its model.

        Raises:
            PluginFailed: it does neither, or has sent no model.
            KeyboardInterrupt: a signal has come.
            BaseException: what it raised.
        """
        with contextlib.redirect_stdout(sys.stderr):  # what the program prints is no output of the command's
            let()
            turn = self._await_turn()
        if isinstance(turn, BaseException):
            raise turn
        self.ended = turn
        if self.arrays is None:
            raise _refusal(
                "ended without sending its model; have its strategy evaluate (fraction_evaluate above 0)"
                if self.rounds
                else "asks no drive to train; send train messages"
            )
        return _to_arrays(self.arrays)

    def tell(self, drives: Mapping[str, DriveHistory]) -> dict[str, dict[str, Any]]:
        """Return what the program says to each of these drives, which are there.

        Raises:
            PluginFailed: all that it asks have left.
        """
        self._samples = {name: drive.samples for name, drive in drives.items()}
        if self._asked.keys().isdisjoint(drives):
            raise _refusal(
                f"asks only drives that have left: {', '.join(self._asked)}; have it ask more drives a round"
            )
        return {
            device: {
                name: value for record in message.content.config_records.values() for name, value in record.items()
            }
            for device, message in self._asked.items()
            if device in drives
        }

    def answer(self, contributions: Sequence[Contribution]) -> dict[str, Array]:
        """Reply to the messages of a round; return the model that the program makes of that."""
        parts = {part.device: part for part in contributions}
        for device, message in self._asked.items():
            part = parts.get(device)
            content = (
                flower.Error(0, f"{device} returned nothing in time")
                if part is None
                else flower.RecordDict(
                    {
                        "arrays": _to_record(part.weights),
                        "metrics": flower.MetricRecord(
                            {**part.metrics, "train_loss": part.loss, "num-examples": part.samples}  # as screened
                        ),
                    }
                )
            )
            self._replies[message.metadata.message_id] = flower.Message(content, reply_to=message)
        self._asked, self.arrays, self.rounds = {}, None, self.rounds + 1
        return self.await_model(lambda: self._answers.put(True))

    def _await_turn(self) -> bool | BaseException:
        for _ in range(_MOST_SECONDS):  # one wait would hear no signal: it may be in another thread than the main one
            try:
                return self._turns.get(timeout=1.0)
            except Empty:
                if INTERRUPTS.signal is not None:
                    raise KeyboardInterrupt from None
        raise _refusal(f"has asked nothing of the drives for {_MOST_SECONDS} s; does a loop not end?")

    def _push(self, message: flower.Message) -> str:
        kind, device = message.metadata.message_type, self._devices.get(message.metadata.dst_node_id, "")
        if kind not in ("train", "evaluate") or not device:
            raise _refusal(f"sends {kind!r} to node {message.metadata.dst_node_id}; drives hear train and evaluate")
        if len(records := list(message.content.array_records.values())) != 1:
            raise _refusal(f"sends {len(records)} ArrayRecords in a message; send one, the model's weights by name")
        self._sent, self._polls = self._sent + 1, 0
        name = message.metadata.__dict__["_message_id"] = str(self._sent)
        if kind == "train":
            if device in self._asked or (self._asked and records[0] != self.arrays):
                raise _refusal("sends a drive two train messages at once, or drives different weights; send all one")
            self._asked[device] = message
        else:
            metrics = flower.MetricRecord({"num-examples": self._samples.get(device, 1)} | self._judge(records[0]))
            self._replies[name] = flower.Message(flower.RecordDict({"metrics": metrics}), reply_to=message)
        self.arrays = records[0]
        return name

    def _judge(self, record: flower.ArrayRecord) -> dict[str, float]:
        if record is not self._judged[0]:  # all drives are sent the same
            judged = self._start.judge(_to_arrays(record))
            figures = {"loss": judged.loss, "accuracy": judged.accuracy, **judged.metrics}
            self._judged = record, {name: value for name, value in figures.items() if math.isfinite(value)}
        return self._judged[1]


class FlowerStrategy(Stateless):
    """Has a Flower program say what drives are told, and make new weights of theirs."""

    def __init__(
        self,
        program: Callable[[CsdGrid, FirstRound], object],
        run_config: Mapping[str, bool | int | float | str],
        proximal: float = 0.0,
    ) -> None:
        """Take the program, which is started with the run.

        Args:
            program: takes the grid and the run.
            run_config: that `ClientApp`s in the drives find in their context.
            proximal: mu of the term that drives add to their loss.
        """
        self._program, self.proximal = program, proximal
        self._run_config = {RUN_CONFIG + name: value for name, value in run_config.items()}

    def first_weights(self, start: FirstRound) -> dict[str, Array]:
        """Start the program, and return the weights that it sends first."""
        self._grid, self._start = CsdGrid(start), start
        weakref.finalize(self, self._grid.close).atexit = False
        thread = threading.Thread(target=self._grid.serve, args=(self._program,), name="ServerApp", daemon=True)
        return self._grid.await_model(thread.start)

    def configure(self, number: int, drives: Mapping[str, DriveHistory]) -> dict[str, dict[str, Any]]:
        """Return what the program says to each drive that it asks.

        Raises:
            PluginFailed: it has ended, or all that it asks have left.
        """
        if self._grid.ended:
            raise _refusal(f"ended after {self._grid.rounds} rounds of {self._start.rounds}; give the job so many")
        said, devices = self._grid.tell(drives), list(self._start.devices)
        if self._start.has_client:
            shared = {**self._run_config, "num-partitions": len(devices)}
            return {name: shared | each | {"partition-id": devices.index(name)} for name, each in said.items()}
        return {name: self._plain(each) for name, each in said.items()}

    def aggregate(self, global_weights: Mapping[str, Array], contributions: Sequence[Contribution]) -> dict[str, Array]:
        """Return the weights that the program makes of what drives returned."""
        return self._grid.answer(contributions)

    def _plain(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a drive without a client program hears; the round, and the job's proximal term, it knows."""
        known = "server-round", "proximal-mu" if said.get("proximal-mu") == self.proximal else ""
        plain = {name: value for name, value in said.items() if name not in known}
        return {_HEARD.get(name, name.replace("-", "_")): value for name, value in plain.items()}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Refuse: what a program keeps between rounds is its own.

        Raises:
            CheckpointError: always.
        """
        raise CheckpointError("a Flower program keeps its own state and cannot be resumed; start the run anew")


def adapt(target: Any) -> Any:
    """Return what makes a `FlowerStrategy` of a `ServerApp` or a Flower strategy's class; anything else as it is."""

    def make_of_app(run_config: dict[str, bool | int | float | str] | None = None) -> FlowerStrategy:
        def program(grid: CsdGrid, start: FirstRound) -> None:
            settings = {"num-server-rounds": start.rounds} | (run_config or {})
            target(grid, flower.Context(1, 1, node_config={}, state=flower.RecordDict(), run_config=settings))

        return FlowerStrategy(program, run_config or {})

    def make_of_algorithm(**options: Any) -> FlowerStrategy:
        algorithm = target(**options)
        return FlowerStrategy(
            lambda grid, start: algorithm.start(grid, _to_record(start.weights), num_rounds=start.rounds),
            {},
            getattr(algorithm, "proximal_mu", 0.0),
        )

    make_of_app.is_flower = make_of_algorithm.is_flower = True  # type: ignore[attr-defined]  # said at a resume
    if isinstance(target, type) and issubclass(target, FlowerAlgorithm):
        functools.update_wrapper(make_of_algorithm, target.__init__)  # type: ignore[misc]
        make_of_algorithm.__signature__ = inspect.signature(target)  # type: ignore[attr-defined]
        return make_of_algorithm
    return make_of_app if isinstance(target, ServerApp) else target


def _note_result(algorithm: Any, grid: Any, *arguments: Any, **named: Any) -> Any:
    """Run a Flower strategy, and tell a `CsdGrid` the model that it ended with."""
    result = _start_strategy(algorithm, grid, *arguments, **named)
    if isinstance(grid, CsdGrid) and result.arrays:
        grid.arrays = result.arrays
    return result


FlowerAlgorithm.start = _note_result


def _refusal(what: str) -> PluginFailed:
    return PluginFailed(f"strategy: the ServerApp {what}", "strategy")


def _to_record(arrays: Mapping[str, Array]) -> flower.ArrayRecord:
    return flower.ArrayRecord({name: flower.Array(array) for name, array in arrays.items()})


def _to_arrays(record: flower.ArrayRecord) -> dict[str, Array]:
    return {name: array.numpy() for name, array in record.items()}
