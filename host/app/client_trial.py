"""Trial of a job's client program on the host, with two records: what it returns, and whether the strategy takes it."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import numpy as np
import torch

from firmware_agent.common.clients.built_in_clients import CLIENTS
from firmware_agent.common.clients.client_program import ClientProgram, ClientReply, round_config
from firmware_agent.common.clients.client_round import EXCHANGED, ClientRecords, ClientRound, NoWatch
from firmware_agent.common.clients.confinement import confined
from firmware_agent.common.errors import (
    ConfigurationError,
    CsdError,
    ModelError,
    PluginError,
    PluginFailed,
    user_errors,
)
from firmware_agent.common.folded_traceback import user_line
from firmware_agent.common.frames.frame_fields import TensorSpec
from firmware_agent.common.frames.session_frames import Train
from firmware_agent.common.losses.objective import Objective
from firmware_agent.common.models import build_model
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.slices import Array, tensor_specs
from firmware_agent.common.weights import load_arrays
from host.app.load_inputs import shipped_code
from host.config.job_file import JobConfig
from host.config.plugins.kinds import CLIENT
from host.config.plugins.plugin_loading import describe_error
from host.config.resolve import Plugins
from host.core.tensor_sums import first_not_finite, in_precision
from host.policies.aggregation import Contribution, DriveHistory, FirstRound, Strategy, make_strategy
from host.training.job_inputs import JobInputs
from host.training.round_exchange import code_frame, job_frame
from host.training.rounds.client_contract import AS_USUAL, ClientContract, Instruction, read_instructions
from host.training.rounds.strategy_rounds import StrategyRounds

T = TypeVar("T")
_RECORDS = 2
_SECONDS = 60.0


class _TrialSgd:
    """Plain gradient descent: torch's own class imports a compiler."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], learning_rate: float) -> None:
        self._parameters, self._learning_rate = list(parameters), learning_rate

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update by the gradients."""
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=self._learning_rate)


class _TrialExchange:
    """Answers exchanges within a round: all of some drives are taken to give the same.

    Attributes:
        rounds: the strategy.
        specs: name on the wire, dtype and shape of each tensor of an exchange; none before the first.
    """

    def __init__(self, rounds: StrategyRounds, drives: Sequence[str]) -> None:
        self.rounds, self._drives = rounds, drives
        self.specs: tuple[TensorSpec, ...] = ()
        self._number = 0

    def __call__(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        specs = tuple(tensor_specs({EXCHANGED + name: array for name, array in arrays.items()}))
        if not specs or specs != (self.specs or specs):
            raise ModelError("csd.exchange: give tensors, the same names, shapes and dtypes each time")
        self.specs, self._number = specs, self._number + 1
        with confined(False):
            return self.rounds.exchange(1, self._number, dict.fromkeys(self._drives, arrays))[self._drives[0]]


def try_client(inputs: JobInputs, plugins: Plugins, strategy: Strategy) -> ClientContract | None:
    """Return the client program of a federated job, which is run once, and what it returns; None without one.

    The strategy is tried, too, as it will be used: what it says to drives, and what it makes of what they return.

    Args:
        inputs: the job, with data and model.
        plugins: the user's own.
        strategy: the job's; another one of the kind is tried.

    Raises:
        ConfigurationError: client program and strategy do not fit, or one of them fails.
    """
    job, code = inputs.job, _choose(inputs.job, plugins, strategy)
    if code is None and not hasattr(strategy, "configure"):
        return None
    parameters = frozenset(inputs.evaluator.initial_weights()).difference(inputs.evaluator.structure().buffers)
    tried = make_strategy(job.strategy, job.drive_momentum, parameters, plugins.strategy)
    drives = [device.name for device in inputs.config.list_devices()]
    said = _configure(inputs, tried, drives, code is not None)
    if code is None:
        return None
    names = list(said)[: max(2, tried.least_contributions)]
    exchange = _TrialExchange(StrategyRounds(tried, job.strategy.name), names)
    reply = _run(inputs, code, next(iter(said.values())), exchange)
    weights = in_precision(inputs.evaluator.initial_weights(), job.chosen_precision)
    parts = [
        Contribution(weights | reply.weights, _RECORDS, 1, device, reply.extras, reply.metrics) for device in names
    ]
    if len(parts) >= tried.least_contributions and not hasattr(tried, "first_weights"):
        try:
            tried.aggregate(weights, parts)
        except (CsdError, KeyError) as error:
            told = f"{error!r} of what it returned" if isinstance(error, KeyError) else str(error)
            raise ConfigurationError(
                f"client {code.name!r} does not fit strategy {job.strategy.name}: {told}"
            ) from error
    return ClientContract(code_frame(code), tuple(tensor_specs(reply.arrays)), tuple(reply.metrics), exchange.specs)


def _choose(job: JobConfig, plugins: Plugins, strategy: Strategy) -> ShippedCode | None:
    """Return the job's client program, or that which its strategy needs.

    Raises:
        ConfigurationError: they do not fit.
    """
    code = shipped_code(CLIENT, job.client, plugins.client)
    if (needed := getattr(strategy, "client", None)) is not None:
        if code is None and ":" in str(needed):
            raise ConfigurationError(f"client: strategy {job.strategy.name} needs one; write client: {needed}")
        code = code or ShippedCode(str(needed))
        if code.name.rpartition("/")[2] != needed:
            raise ConfigurationError(
                f"client: strategy {job.strategy.name} needs the client program {needed!r}, and the job names "
                f"{code.name!r}; name that one, or leave client out"
            )
    if code is None:
        return None
    half = CLIENTS.get(code.name) if plugins.client is None else plugins.client.target
    wanted = getattr(half, "strategy", None)
    if needed is None and wanted not in (None, job.strategy.name.rpartition("/")[2]):
        raise ConfigurationError(
            f"client {code.name}: needs strategy {wanted}, and the job has {job.strategy.name}; write strategy: "
            f"{wanted}, or name another client"
        )
    if getattr(strategy, "counts_steps", False):
        raise ConfigurationError(
            f"strategy {job.strategy.name}: weighs updates by the steps of the drives' own loop, and those of a client "
            "program are its own word; choose another strategy, or leave client out"
        )
    if code == ShippedCode("scaffold") and not job.by_sgd:
        raise ConfigurationError(
            f"client scaffold: takes its control variates from steps of SGD, and optimizer is "
            f"{job.chosen_optimiser.name}; leave optimizer out"
        )
    return code


def _configure(inputs: JobInputs, strategy: Any, drives: list[str], has_client: bool) -> dict[str, Instruction]:
    if not hasattr(strategy, "configure"):
        return dict.fromkeys(drives, AS_USUAL)
    job, judge = inputs.job, inputs.evaluator
    try:
        if hasattr(strategy, "first_weights"):
            weights = in_precision(judge.initial_weights(), job.chosen_precision)
            strategy.first_weights(FirstRound(drives, weights, job.rounds, job.seed, has_client, judge.evaluate))
        said = strategy.configure(1, {device: DriveHistory(device, _RECORDS) for device in drives})
        return read_instructions(said, drives, job.strategy.name, has_client)
    except PluginFailed as error:
        raise PluginError(str(error)) from error


def _run(inputs: JobInputs, code: ShippedCode, instruction: Instruction, exchange: _TrialExchange) -> ClientReply:
    job, dataset = inputs.job, inputs.dataset
    program = ClientProgram.load(code)
    objective = Objective.of_spec(inputs.objective, job.chosen_precision)
    model = build_model(inputs.spec, job.freeze).train().to(objective.dtype)
    load_arrays(model, in_precision(inputs.evaluator.initial_weights(), job.chosen_precision))
    records = ClientRecords(
        lambda places: {name: column[places] for name, column in dataset.fields.items()},
        lambda: np.arange(_RECORDS),
        _RECORDS,
    )
    begun = ClientRound(
        *(1, model, objective, records, (1, min(job.batch_size, _RECORDS))),
        *(lambda: _TrialSgd(model.parameters(), job.learning_rate), NoWatch()),
    )
    if hasattr(exchange.rounds.strategy, "exchange"):
        begun.ask = exchange
    frame = job_frame(job, inputs.spec, inputs.objective, optimizer=inputs.optimizer)
    config = round_config(frame, Train(1, 1, config=dict(instruction.config)))
    state: dict[str, Any] = {}
    seconds = min(_SECONDS, job.watchdog)
    try:
        reply = _within(lambda: program.run(begun, config, instruction.tensors, state), code.name, seconds)
        program.state_arrays(state, model)
    except CsdError:
        raise
    except user_errors() as error:
        raise ModelError(f"client {code.name!r}: failed in a trial on two records: {describe_error(error)}") from error
    if bad := first_not_finite(reply.arrays):
        raise ModelError(
            f"client {code.name!r}: returned {bad} with values that are no finite numbers in a trial on two records"
        )
    return reply


def _within(call: Callable[[], T], name: str, seconds: float) -> T:
    """Return what `call` returns.

    Raises:
        ConfigurationError: it does not return in so many seconds.
    """
    trial = Future[T]()

    def run() -> None:
        try:
            trial.set_result(call())
        except BaseException as error:  # it is raised where the trial is waited for
            trial.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    if wait([trial], seconds).not_done:
        frame = sys._current_frames().get(thread.ident or 0)
        raise ConfigurationError(
            f"client {name!r}: has not returned from a trial on two records after {seconds:g} s"
            f"{user_line(traceback.extract_stack(frame))}; is there a loop that does not end?"
        )
    return trial.result()
