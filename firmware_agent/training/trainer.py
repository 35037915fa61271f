"""Local training on the drive's shard."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from types import MappingProxyType

import numpy as np
import torch

from firmware_agent.clock import PHASES, Stopwatch, wait_for_fresh_slice
from firmware_agent.common.frames.frame_fields import MAX_LAYERS, PhaseSeconds
from firmware_agent.common.frames.measure_frames import LayerTimes, Measure, Measured, PhaseMark
from firmware_agent.common.frames.session_frames import Job, Tensors, Train
from firmware_agent.common.frames.step_frames import Stepped
from firmware_agent.common.layer_costs import LayerWork, trace_layers
from firmware_agent.common.layer_seconds import LayerSeconds, layer_times, measure_layers
from firmware_agent.common.losses.objective import Batch
from firmware_agent.common.shard import Shard
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.slices import Array, cut_slices, tensor_specs
from firmware_agent.common.split.activations import epoch_order
from firmware_agent.common.weights import state_arrays
from firmware_agent.common.wire import encode
from firmware_agent.cycle_marks import CycleMarks
from firmware_agent.peak_memory import PeakMemory
from firmware_agent.training.client_exchange import ClientExchange
from firmware_agent.training.client_training import ClientTraining
from firmware_agent.training.loaded_job import LoadedJob, size_of
from firmware_agent.training.local_optimiser import make_local_optimiser
from firmware_agent.training.local_pass import LocalPass
from firmware_agent.training.sgd import LocalSgd
from firmware_agent.training.step_sender import Damage

log = logging.getLogger(__name__)
NOTHING_MORE: Mapping[str, Array] = MappingProxyType({})
# Most passes that are timed; their median counts.
LAYER_PASSES = 8
# Steps with cycle marks end after so many seconds, but with so many steps at least beside the first, or one long one.
_MARKED_SECONDS, _LEAST_MARKED_STEPS, _MARKED_ENCODINGS = 5.0, 2, 3
# What a step does only to be watched is done so often; the mean counts.
_WATCHED_REPETITIONS = 64


class Trainer:
    """A model, its optimiser, and the shard that they train on. One is made per job.

    Attributes:
        loaded: the model and the records.
        model: the same model.
    """

    def __init__(
        self,
        job: Job,
        shard: Shard,
        device_number: int,
        stopwatch: Stopwatch,
        exchange: ClientExchange | None = None,
    ) -> None:
        """Build the job's model.

        Args:
            job: what to train and how.
            shard: this drive's data.
            device_number: makes each drive's order of samples its own.
            stopwatch: charges the phases.
            exchange: of a client program with the host, within a round.

        Raises:
            ModelError: the model cannot be built here.
        """
        self._job, self._stopwatch = job, stopwatch
        self._seed = (job.seed, device_number)
        self.loaded = LoadedJob(job, shard, stopwatch)
        self.model = self.loaded.model
        self._client: ClientTraining | None = None
        if job.client is not None:
            code = ShippedCode(job.client.name, job.client.source, job.client.arguments)  # type: ignore[arg-type]
            self._client = ClientTraining(code, self.loaded, self._optimiser, self._seed, stopwatch, exchange)

    def train(self, task: Train, received: Mapping[str, Array] = NOTHING_MORE) -> LocalPass:
        """Pass `task.epochs` times over the shard, in the order of `epoch_order`; or take the steps that it names.

        In a job with a client program that trains, with what was `received` beside the weights.
        """
        torch.manual_seed(int(np.random.SeedSequence([*self._seed, task.round]).generate_state(1)[0]))
        if self._client is not None:
            return self._client.train(self._job, task, received)
        optimiser = self._optimiser(task.learning_rate)
        loss_sum, samples, steps, read_bytes = 0.0, 0, 0, 0
        each: list[PhaseSeconds] = []
        for batch in self._batches(task):
            size, size_bytes = size_of(batch)
            loss_sum += self._step(optimiser, batch) * size
            samples, steps, read_bytes = samples + size, steps + 1, read_bytes + size_bytes
            if task.batches is not None:
                each.append(self._stopwatch.take())
                self._stopwatch.mark()
        return LocalPass(samples, steps, loss_sum / samples if samples else 0.0, read_bytes, each)

    def measure(self, task: Measure) -> Measured:
        """Run the loop of `train` as `task` says; with `task.restore` the weights stay as they were.

        The steps before it are not counted: in them the process takes its memory from the kernel.
        """
        torch.set_num_threads(task.threads)
        before = copy.deepcopy(self.model.state_dict()) if task.restore else None
        optimiser, now, watch = self._optimiser(), self._stopwatch.now, self._stopwatch
        memory = PeakMemory()
        self._warm_up(optimiser, task)
        each: list[PhaseSeconds] = []
        samples, steps, most = 0, 0, task.steps
        wait_for_fresh_slice(now)
        watch.take()
        watch.mark()
        start = now()
        for batch in self._endless_batches(task.batch_size):
            self._step(optimiser, batch)
            samples, steps = samples + task.batch_size, steps + 1
            if most is not None:
                each.append(watch.take())
                watch.mark()
            if now() - start >= task.device_seconds or steps == most:
                break
        elapsed_seconds = now() - start
        seconds = _sum(each) if each else watch.take()
        peak_bytes = memory.peak_bytes()
        encode_seconds, watching_seconds = (self._encode_seconds(), _monitor_seconds(now)) if each else (0.0, 0.0)
        layers = self._layer_times(optimiser, task, each) if task.layers and each else None
        if task.cycle_steps:
            self._run_marked_steps(optimiser, task)
        if before is not None:
            self.model.load_state_dict(before)
        return Measured(
            *(samples, steps, seconds, elapsed_seconds, each, encode_seconds, peak_bytes, memory.source),
            watching_seconds,
            layers,
        )

    def encode(self, exchange: int, damage: Damage = lambda: None, done: LocalPass | None = None) -> list[bytes]:
        """Return the frames that carry the weights: the part of sending in which a task is always runnable.

        Of a round that a client program has done they carry what it returned, and its state, which is no device time.
        """
        self._stopwatch.mark()
        reply, kept = (None, {}) if done is None else (done.reply, done.state)
        arrays = state_arrays(self.model) if reply is None else reply.arrays
        pieces = (harm(piece) if (harm := damage()) else piece for piece in cut_slices(exchange, arrays))
        frames = [encode(frame) for frame in (Tensors(exchange, tensor_specs({**arrays, **kept})), *pieces)]
        self._stopwatch.lap("encode")
        return [*frames, *(encode(piece) for piece in cut_slices(exchange, kept))]

    def _run_marked_steps(self, optimiser: LocalSgd, task: Measure) -> None:
        """Take steps with a cycle mark at the end of each phase, and encode the weights a few times."""
        marks = CycleMarks()
        self._stopwatch.on_lap = lambda phase: marks.execute(PhaseMark[phase.upper()])
        batches, least = self._endless_batches(task.batch_size), _LEAST_MARKED_STEPS
        if task.warm_up_batch_size:  # steps are long
            batches, least = chain(islice(self._endless_batches(task.warm_up_batch_size), 1), batches), 1
        try:
            marks.execute(PhaseMark.START)
            start = self._stopwatch.now()
            for number in range(1 + task.cycle_steps):
                if number > least and self._stopwatch.now() - start >= _MARKED_SECONDS:
                    break
                batch = next(batches)
                self._stopwatch.mark()
                self._step(optimiser, batch)
            for _ in range(_MARKED_ENCODINGS):
                self.encode(0)
            marks.execute(PhaseMark.STOP)
        finally:
            self._stopwatch.on_lap = None
        self._stopwatch.take()

    def _encode_seconds(self) -> float:
        self.encode(0)
        return self._stopwatch.take().encode

    def _layer_times(self, optimiser: LocalSgd, task: Measure, steps: Sequence[PhaseSeconds]) -> LayerTimes | None:
        """Return what the layers take of the median step; None of a model whose layers cannot be told apart."""
        try:
            layers = trace_layers(self.model, *self.loaded.inputs(self.loaded.take(np.arange(1))))
        except Exception as error:  # the user's model may not take one record, or not in evaluation
            log.warning("the model's layers cannot be told apart: %s", error)
            return None
        if len(layers) > MAX_LAYERS:
            log.warning("the model has %d layers, %d can be told of", len(layers), MAX_LAYERS)
            return None
        passes = self._watched_passes(optimiser, task, layers)
        self._stopwatch.take()
        return layer_times(layers, passes, steps)

    def _watched_passes(
        self, optimiser: LocalSgd, task: Measure, layers: Sequence[LayerWork]
    ) -> list[tuple[LayerSeconds, ...]]:
        """Return the passes of which the seconds count: a first one does not, unless it takes all the time there is."""
        now, batches = self._stopwatch.now, self._endless_batches(task.batch_size)
        passes: list[tuple[LayerSeconds, ...]] = []
        start = now()
        for _ in range(1 + min(LAYER_PASSES, task.steps or LAYER_PASSES)):
            begin = now()
            optimiser.zero_grad()
            dropped_seconds = now() - begin
            seen = measure_layers(self.model, self._loss(batches), now, layers)
            passes.append((replace(seen[0], backward_seconds=seen[0].backward_seconds + dropped_seconds), *seen[1:]))
            if now() - start >= task.device_seconds:
                break
        optimiser.zero_grad()
        return passes[1:] or passes

    def _loss(self, batches: Iterator[Batch]) -> Callable[[], torch.Tensor]:
        """Return what computes the loss of a batch: taking it from memory is part of that, from flash it is not."""
        if self.loaded.resident:
            return lambda: self.loaded.forward(next(batches))
        taken = next(batches)
        return lambda: self.loaded.forward(taken)

    def _warm_up(self, optimiser: LocalSgd, task: Measure) -> None:
        now, size = self._stopwatch.now, task.warm_up_batch_size or task.batch_size
        start = now()
        for number, batch in enumerate(self._endless_batches(size)):
            if number >= task.warm_up_steps or (number and now() - start >= task.device_seconds):
                return
            self._step(optimiser, batch)

    def _step(self, optimiser: LocalSgd, batch: Batch) -> float:
        watch = self._stopwatch
        loss = self.loaded.forward(batch)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        watch.lap("backward")
        optimiser.step()
        value = loss.item()
        watch.lap("update")
        return value

    def _batches(self, task: Train) -> Iterator[Batch]:
        if task.batches is not None:
            self._stopwatch.mark()
            yield from (self.loaded.take(np.frombuffer(records, "<u4")) for records in task.batches)
            return
        size = int(task.config.get("batch_size", self._job.batch_size))
        for epoch in range(task.epochs):
            order = epoch_order(*self._seed, task.round, epoch, self.loaded.samples)
            self._stopwatch.mark()
            yield from (self.loaded.take(order[start : start + size]) for start in range(0, len(order), size))

    def _endless_batches(self, batch_size: int) -> Iterator[Batch]:
        generator = np.random.default_rng(self._seed)
        while True:
            yield self.loaded.take(generator.integers(0, self.loaded.samples, batch_size))

    def _optimiser(self, learning_rate: float | None = None) -> LocalSgd:
        return make_local_optimiser(self._job, self.model.parameters(), learning_rate)


def _monitor_seconds(now: Callable[[], float]) -> float:
    """Return the seconds, by this clock, of what every synchronous step does only to be watched; a mean of many.

    Memory is read when the batch changes, not in every step.
    """
    watch = Stopwatch(now)
    begin = now()
    for _ in range(_WATCHED_REPETITIONS):
        watch.mark()
        for phase in ("forward", "backward", "encode"):
            watch.lap(phase)
        encode(Stepped(1, 1, 0.0, watch.take(), 1))
    return (now() - begin) / _WATCHED_REPETITIONS


def _sum(steps: Sequence[PhaseSeconds]) -> PhaseSeconds:
    return PhaseSeconds(*(sum(getattr(step, phase) for step in steps) for phase in PHASES))
