"""The agent: serves one host session after the other, until the host refuses it or the drive is switched off."""

from __future__ import annotations

import functools
import logging
import platform
import secrets
import threading
from collections.abc import Callable, Mapping

import msgspec
import numpy
import torch

from firmware_agent import __version__, bare_loop
from firmware_agent.clock import Stopwatch, wait_for_fresh_slice
from firmware_agent.common.errors import (
    USER_ERRORS,
    AgentRefused,
    CsdError,
    DataError,
    DeviceLost,
    ModelError,
    ProtocolError,
)
from firmware_agent.common.folded_traceback import (
    bounded,
    describe_error,
    format_user_traceback,
    lacks_memory,
    names_user_code,
    user_error,
)
from firmware_agent.common.frames.frame_fields import MEASURES_LAYERS, Frame, Metered
from firmware_agent.common.frames.measure_frames import Measure, Measured, ProbeRead, ProbeSend
from firmware_agent.common.frames.session_frames import (
    Disturb,
    Disturbed,
    Failed,
    Hello,
    Job,
    Ready,
    Sabotage,
    Sabotaged,
    Slice,
    Tensors,
    Train,
    Trained,
    Welcome,
)
from firmware_agent.common.frames.step_frames import Reduce, Reduced, Step, Stepped
from firmware_agent.common.identity import Identity
from firmware_agent.common.shard import Shard
from firmware_agent.common.slices import Assembler, tensor_specs
from firmware_agent.common.split.activations import device_number
from firmware_agent.common.weights import load_arrays, state_arrays
from firmware_agent.common.wire import PROTOCOL_VERSION, AnyFrame, encode, pack
from firmware_agent.faults.competing_task import Disturbance
from firmware_agent.faults.fault_injection import Saboteur
from firmware_agent.faults.io_limits import Throttle
from firmware_agent.faults.throttle_probe import probe_read, probe_send
from firmware_agent.host_session import HostSession
from firmware_agent.peak_memory import high_water_bytes
from firmware_agent.power_meter import PowerMeter
from firmware_agent.training.cut_pass import cross_in_turn
from firmware_agent.training.gradient_step import GradientWorker, LocalStep
from firmware_agent.training.overlapped_steps import Overlap
from firmware_agent.training.trainer import Trainer

log = logging.getLogger(__name__)
# Delay between two sessions; doubled, up to the longest, after each session in which the host broke the protocol.
REDIAL_SECONDS, LONGEST_REDIAL_SECONDS = 0.25, 8.0


class Agent:
    """One drive's agent: its identity, its shard, and what the host asks of them."""

    def __init__(
        self,
        identity: Identity,
        shard: Shard,
        disturbance: Disturbance,
        facts: Mapping[str, str] | None = None,
        throttle: Throttle | None = None,
        saboteur: Saboteur | None = None,
        meter: PowerMeter | None = None,
    ) -> None:
        """Take a shard that was opened and checked; nothing is dialled yet.

        Args:
            identity: who this drive is.
            shard: its data.
            disturbance: its competing task.
            facts: go into the hello.
            throttle: its own limits on flash and network.
            saboteur: injects faults for experiments; without one the disk cannot be filled.
            meter: reads what it draws; None where the host's model has to say it.
        """
        self._identity, self._shard, self._disturbance = identity, shard, disturbance
        self._saboteur = saboteur or Saboteur(None)
        self._facts = dict(facts or {})
        self._throttle = throttle or Throttle(None)
        self._meter = meter
        self._instance = secrets.token_hex(8)
        self._stopwatch = Stopwatch()
        self._trainer: Trainer | None = None
        self._gradients: GradientWorker | None = None
        self._inbound: Assembler | None = None
        self._overlap: Overlap | None = None
        self._job: Job | None = None
        # Records of the last step, and the most memory that was held after the first step of that size.
        self._peak = 0, 0

    def serve_forever(self, stop: threading.Event, dial: Callable[[Identity], HostSession] = HostSession) -> None:
        """Dial, serve, redial, until `stop` is set.

        Raises:
            AgentRefused: the host does not want this agent: it is stale, or not of this array.
        """
        redial_seconds = REDIAL_SECONDS
        while not stop.is_set():
            try:
                with dial(self._identity) as session:
                    self._serve(session)
            except DeviceLost as error:
                redial_seconds = REDIAL_SECONDS
                log.info("%s; redialling", error)
            except ProtocolError as error:
                redial_seconds = min(LONGEST_REDIAL_SECONDS, 2 * redial_seconds)
                log.warning("%s; redialling", error)
            finally:
                self._disturbance.set_weight(0)
                self._saboteur.end()
                if self._overlap is not None:
                    self._overlap.join()
                self._trainer = self._gradients = self._inbound = self._overlap = None
            stop.wait(redial_seconds)

    def hello(self) -> Hello:
        """Return the frame that introduces this drive."""
        return Hello(
            protocol=PROTOCOL_VERSION,
            device=self._identity.device,
            incarnation=self._identity.incarnation,
            clock=self._identity.clock,
            manifest_sha256=self._shard.manifest_sha256,
            samples=self._shard.manifest.samples,
            facts=device_facts() | {MEASURES_LAYERS: "yes"} | self._facts,
            instance=self._instance,
            holding=self._shard.holding,
        )

    def _serve(self, session: HostSession) -> None:
        session.send(self.hello())
        if not isinstance(session.receive(), Welcome):
            raise ProtocolError("the host answered a hello with something other than a welcome")
        while True:
            frame = session.receive() if self._overlap is None else self._overlap.receive()
            try:
                self._handle(session, frame)
            except (AgentRefused, DeviceLost, ProtocolError):
                raise
            except USER_ERRORS as error:  # the user's model may raise anything; the host must hear of it
                if not isinstance(error, CsdError):
                    log.error("%s failed: %s", type(frame).__name__, describe_error(error))
                self._report_failure(session, frame, error)

    def _report_failure(self, session: HostSession, frame: AnyFrame, error: BaseException) -> None:
        failed = describe_failure(type(frame).__name__, error)
        if self._overlap is not None and isinstance(frame, Step):
            self._overlap.fail(failed)
        else:
            session.send(failed)

    def _take_tensors(self, frame: Tensors | Slice) -> None:
        if isinstance(frame, Slice):
            self._assembler().add(frame)
            return
        arrays = state_arrays(self._ready().model)
        self._inbound = Assembler(frame.exchange, frame.specs, tensor_specs(arrays), arrays)

    def _handle(self, session: HostSession, frame: AnyFrame) -> None:
        if isinstance(frame, Slice | Tensors):
            self._take_tensors(frame)
        elif isinstance(frame, Job):
            self._begin_job(session, frame)
        elif isinstance(frame, Train | Step):
            self._compute(session, frame)
        elif isinstance(frame, Measure):
            session.send(self._measure(frame))
        elif isinstance(frame, Disturb):
            self._disturbance.set_weight(frame.weight)
            session.send(Disturbed(frame.weight))
        elif isinstance(frame, ProbeRead):
            session.send(probe_read(frame, self._shard.path, self._throttle))
        elif isinstance(frame, ProbeSend):
            session.send(probe_send(frame, self._throttle))
        elif isinstance(frame, Sabotage):
            session.send(Sabotaged(self._saboteur.do(frame.harm)))
        else:
            raise ProtocolError(f"the host sent a {type(frame).__name__}, which only a drive sends")

    def _begin_job(self, session: HostSession, job: Job) -> None:
        if self._overlap is not None:
            raise ProtocolError("the host sent a second job in a session whose slices overlap; dial again for it")
        ready = self._prepare(job)
        if job.overlap:  # ready for slices before the host is told so
            self._overlap = Overlap(session, job, self._worker(), self._stopwatch, self._saboteur.pass_on)
            self._overlap.start()
        session.send(ready)

    def _prepare(self, job: Job) -> Frame:
        device = self._identity.device
        self._trainer = Trainer(job, self._shard, device_number(device), self._stopwatch)
        self._gradients = GradientWorker(job, self._trainer.loaded, device, self._stopwatch)
        self._job = job
        return Ready(sum(p.numel() for p in self._trainer.model.parameters()))

    def _compute(self, session: HostSession, task: Train | Step) -> None:
        if self._overlap is None:
            load_arrays(self._ready().model, self._assembler().arrays())
            self._inbound = None
        if self._disturbance.running:  # the scheduler owes a task that has slept, which no wait of ours shall earn
            wait_for_fresh_slice(self._stopwatch.now)
        if self._meter is not None:
            self._meter.begin()
        self._stopwatch.take()
        if self._overlap is not None:
            self._step_overlapping(self._overlap, task)
            return
        for message in pack(self._train(task) if isinstance(task, Train) else self._step(session, task)):
            session.send_encoded(message)

    def _train(self, task: Train) -> list[bytes]:
        trainer = self._ready()
        done = trainer.train(task)
        frames = trainer.encode(task.round, self._saboteur.pass_on)
        seconds, peak_bytes = self._stopwatch.take(), high_water_bytes()
        trained = Trained(task.round, done.samples, done.steps, done.loss, seconds, done.read_bytes, peak_bytes)
        return [*frames, encode(msgspec.structs.replace(trained, metered=self._metered()))]

    def _step(self, session: HostSession, task: Step) -> list[bytes]:
        worker, pass_on = self._worker(), self._saboteur.pass_on
        meet = functools.partial(_meet, session.send, session.receive)
        cross = cross_in_turn(session.send_encoded, session.receive, pass_on, self._stopwatch)
        done = worker.compute(task, meet, cross=cross)
        frames = worker.encode(task.step, pass_on, task.sending)
        return [*frames, encode(self._stepped(task, done))]

    def _step_overlapping(self, overlap: Overlap, task: Train | Step) -> None:
        if not isinstance(task, Step):
            raise ProtocolError("the host sent a round to train in a session whose slices overlap")
        overlap.finish(self._stepped(task, overlap.compute(task, _meet)))

    def _stepped(self, task: Step, done: LocalStep) -> Stepped:
        seconds, peak_bytes = self._stopwatch.take(), self._peak_bytes(done.samples)
        stepped = Stepped(task.step, done.samples, done.loss, seconds, done.read_bytes, peak_bytes)
        return msgspec.structs.replace(stepped, metered=self._metered())

    def _metered(self) -> Metered | None:
        return None if self._meter is None else self._meter.end()

    def _peak_bytes(self, records: int) -> int:
        """Return the most memory that was held; it is read anew when the batch changes, for it hardly rises else."""
        if records != self._peak[0]:
            self._peak = records, high_water_bytes()
        return self._peak[1]

    def _measure(self, task: Measure) -> Measured:
        trainer = self._ready()
        if task.bare and self._job is not None:
            return bare_loop.run_in_process(self._job, task, self._shard)
        return trainer.measure(task)

    def _ready(self) -> Trainer:
        if self._trainer is None:
            raise ProtocolError("the host sent a task before any job")
        return self._trainer

    def _worker(self) -> GradientWorker:
        if self._gradients is None:
            raise ProtocolError("the host sent a step before any job")
        return self._gradients

    def _assembler(self) -> Assembler:
        if self._inbound is None:
            raise ProtocolError("the host sent slices or a task before announcing tensors")
        return self._inbound


def describe_failure(task: str, error: BaseException) -> Failed:
    """Return what the host is told of a task that raised an error.

    It is the user's code that failed if a model cannot be built or data cannot be read, or if no error of csd-emu's
    came, unless the drive ran out of memory, its own files could not be read, or an assertion was not the user's.
    """
    user = isinstance(error, ModelError | DataError) or not isinstance(error, CsdError | OSError | AssertionError)
    user = user or (isinstance(error, OSError | AssertionError) and names_user_code(error))
    user = user and not lacks_memory(error)
    inner = user_error(error) or error
    name = bounded(type(error if isinstance(error, DataError) else inner).__name__, 200)
    return Failed(task, describe_error(error), name, format_user_traceback(error) if user else "", user)


def _meet(send: Callable[[Frame], None], receive: Callable[[], AnyFrame], mine: Reduce) -> bytes:
    """Return the sum of the values in `mine` and those of all other participants."""
    send(mine)
    total = receive()
    if not isinstance(total, Reduced) or (total.step, total.index) != (mine.step, mine.index):
        raise ProtocolError(f"the host sent a {type(total).__name__} where sum {mine.index} of the step was due")
    if len(total.values) != len(mine.values):
        raise ProtocolError(f"the host returned {len(total.values)} bytes as the sum of {len(mine.values)}")
    return total.values


def device_facts() -> dict[str, str]:
    """Return what the host should know of this machine, for the record: versions and the CPU's flags."""
    return {
        "agent": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "machine": platform.machine(),
        "kernel": platform.release(),
        "cpu_aes": "yes" if _cpu_has("aes") else "no",
    }


def _cpu_has(flag: str) -> bool:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as stream:
            return any(flag in line.split() for line in stream if line.lower().startswith(("features", "flags")))
    except OSError:
        return False
