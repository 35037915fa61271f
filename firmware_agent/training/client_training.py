"""Rounds of a job with a client program: the program trains in place of the built-in loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count

import torch

from firmware_agent.clock import Stopwatch
from firmware_agent.common.clients.client_program import EXTRA, STATE, ClientProgram, ClientReply, round_config
from firmware_agent.common.clients.client_round import ClientRecords, ClientRound, Optimizer
from firmware_agent.common.clients.confinement import import_ahead
from firmware_agent.common.errors import ModelError
from firmware_agent.common.frames.session_frames import Job, Train
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.slices import Array, tensor_specs
from firmware_agent.common.split.activations import epoch_order
from firmware_agent.training.client_exchange import ClientExchange, describe
from firmware_agent.training.loaded_job import LoadedJob
from firmware_agent.training.local_pass import LocalPass


class ClientTraining:
    """A job's client program and its state in this drive."""

    def __init__(
        self,
        code: ShippedCode,
        loaded: LoadedJob,
        make_optimizer: Callable[[float | None], Optimizer],
        seed: tuple[int, int],
        stopwatch: Stopwatch,
        exchange: ClientExchange | None = None,
    ) -> None:
        """Load the program.

        Args:
            code: names it.
            loaded: model and records.
            make_optimizer: returns the job's, given the round's learning rate.
            seed: of the job and of this drive.
            stopwatch: charges the phases.
            exchange: with the host, within a round.

        Raises:
            ModelError: it cannot be loaded.
        """
        self._program = ClientProgram.load(code)
        self._loaded, self._make_optimizer, self._seed, self._stopwatch = loaded, make_optimizer, seed, stopwatch
        self._exchange = exchange
        self._state: dict[str, Array] = {}

    def train(self, job: Job, task: Train, received: Mapping[str, Array]) -> LocalPass:
        """Have the program train for a round.

        Args:
            job: of the program.
            task: the round.
            received: tensors that came beside the weights, by names on the wire; with the state, if this drive is to go
                on from one that it does not have.

        Raises:
            ModelError: what the program returned cannot be taken.
            BaseException: what it raised.
        """
        if given := {name.removeprefix(STATE): a for name, a in received.items() if name.startswith(STATE)}:
            self._state = given
        loaded, size = self._loaded, int(task.config.get("batch_size", job.batch_size))
        passes = count()
        records = ClientRecords(
            loaded.take,
            lambda: epoch_order(*self._seed, task.round, next(passes), loaded.samples),
            *(loaded.samples, loaded.resident),
        )
        begun = ClientRound(
            *(task.round, loaded.model, loaded.objective, records, (task.epochs, size)),
            *(partial(self._make_optimizer, task.learning_rate), self._stopwatch),
        )
        if self._exchange is not None and job.exchanges:
            self._exchange.begin(task.round, job.exchanges)
            begun.ask = self._exchange
        state = {name: _own(array) for name, array in self._state.items()}  # of a round that fails nothing is kept
        loaded.model.train()
        loaded.model.zero_grad(set_to_none=True)
        extras = {name.removeprefix(EXTRA): a for name, a in received.items() if name.startswith(EXTRA)}
        if job.optimiser is not None:  # the program may ask for it
            import_ahead(None)
        self._stopwatch.mark()
        reply = self._program.run(begun, round_config(job, task), extras, state)
        reply = self._checked(job, reply)
        kept_arrays = self._program.state_arrays(state, loaded.model)
        self._stopwatch.lap("update")
        self._state = {name: array.copy() for name, array in kept_arrays.items()}
        loss = reply.metrics.get("loss", begun.mean_loss)
        tensors = {STATE + name: array for name, array in kept_arrays.items()}
        return LocalPass(begun.samples, begun.steps, loss, begun.read_bytes, reply=reply, state=tensors)

    def _checked(self, job: Job, reply: ClientReply) -> ClientReply:
        """Return the reply in the order of the trial on the host, if it has the tensors and numbers of that."""
        found = {spec.name: spec for spec in tensor_specs(reply.arrays)}
        wanted = {spec.name: spec for spec in job.returns}
        for name in wanted | found:
            if wanted.get(name) != found.get(name) and job.returns:
                told, due = (describe(each[name]) if name in each else "nothing" for each in (found, wanted))
                raise ModelError(
                    f"client {self._program.name!r}: returned {name.removeprefix(EXTRA)} as {told}, in its trial on "
                    f"the host as {due}; return the same names, shapes and dtypes in each round and drive, none that "
                    "depends on how many records there are (the trial has two)"
                )
        if job.returns and (new := [name for name in reply.metrics if name not in job.metrics]):
            raise ModelError(
                f"client {self._program.name!r}: returned the number {new[0]}, and not so in its trial on the host; "
                "return the same names in each round"
            )
        order = [spec.name.removeprefix(EXTRA) for spec in job.returns if spec.name.startswith(EXTRA)]
        return reply._replace(extras={name: reply.extras[name] for name in order or reply.extras})


def _own(array: Array) -> torch.Tensor | float:
    """Return what a program gets of its state: a number as one, a tensor that is its own to change."""
    return array.item() if array.ndim == 0 else torch.from_numpy(array.copy())
