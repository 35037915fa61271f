"""The agent: serves one host session after the other, until the host refuses it or the drive is switched off."""

from __future__ import annotations

import logging
import os
import platform
import re
import secrets
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy
import torch

from firmware_agent import __version__, bare_loop
from firmware_agent.clock import Stopwatch, wait_for_fresh_slice
from firmware_agent.common.errors import (
    AgentRefused,
    CsdError,
    DataError,
    DeviceLost,
    ModelError,
    OptimiserFailed,
    ProtocolError,
    user_errors,
)
from firmware_agent.common.folded_traceback import (
    bounded,
    describe_error,
    format_user_traceback,
    lacks_memory,
    names_user_code,
    user_error,
)
from firmware_agent.common.frames.frame_fields import MEASURES_LAYERS, Metered
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
from firmware_agent.common.frames.step_frames import Step, Stepped
from firmware_agent.common.health.drive_health import DriveHealth
from firmware_agent.common.identity import Identity
from firmware_agent.common.shard import Shard
from firmware_agent.common.split.activations import device_number
from firmware_agent.common.wire import PROTOCOL_VERSION, AnyFrame, encode, pack
from firmware_agent.faults.competing_task import Disturbance
from firmware_agent.faults.fault_injection import Saboteur
from firmware_agent.faults.io_limits import Throttle
from firmware_agent.faults.throttle_probe import probe_read, probe_send
from firmware_agent.health_reader import HealthReader
from firmware_agent.host_session import HostSession
from firmware_agent.peak_memory import high_water_bytes
from firmware_agent.power_meter import PowerMeter
from firmware_agent.training.client_exchange import ClientExchange
from firmware_agent.training.device_steps import DeviceSteps
from firmware_agent.training.gradient_step import GradientWorker, LocalStep
from firmware_agent.training.trainer import Trainer

log = logging.getLogger(__name__)
# Delay between two sessions; doubled, up to the longest, after each session in which the host broke the protocol.
REDIAL_SECONDS, LONGEST_REDIAL_SECONDS = 0.25, 8.0


class DriveJob(NamedTuple):
    """A job that the host sent.

    Attributes:
        frame: as it came.
        trainer: trains rounds, and is measured.
        steps: takes the weights of rounds and steps, and computes the steps.
    """

    frame: Job
    trainer: Trainer
    steps: DeviceSteps


class Agent:
    """One drive's agent: its identity, its shard, and what the host asks of them.

    Attributes:
        health: reads the drive's health logs; None of a drive that has none.
    """

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
        self.health: HealthReader | None = None
        self._instance = secrets.token_hex(8)
        self._stopwatch = Stopwatch()
        self._job: DriveJob | None = None
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
                if self._job is not None:
                    self._job.steps.join()
                self._job = None
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
            frame = session.receive() if self._job is None else self._job.steps.receive()
            try:
                self._handle(session, frame)
            except (AgentRefused, DeviceLost, ProtocolError):
                raise
            except user_errors() as error:  # the user's model may raise anything; the host must hear of it
                if not isinstance(error, CsdError):
                    log.error("%s failed: %s", type(frame).__name__, describe_error(error))
                self._report_failure(session, frame, error)

    def _report_failure(self, session: HostSession, frame: AnyFrame, error: BaseException) -> None:
        failed = describe_failure(type(frame).__name__, error)
        if self._job is not None and isinstance(frame, Step):
            self._job.steps.fail(failed)
        else:
            session.send(failed)

    def _handle(self, session: HostSession, frame: AnyFrame) -> None:
        match frame:
            case Slice() | Tensors():
                self._ready().steps.take(frame)
            case Job():
                self._begin_job(session, frame)
            case Train() | Step():
                self._compute(session, frame)
            case Measure():
                session.send(self._measure(frame))
            case Disturb():
                self._disturbance.set_weight(frame.weight)
                session.send(Disturbed(frame.weight))
            case ProbeRead():
                session.send(probe_read(frame, self._shard.path, self._throttle))
            case ProbeSend():
                session.send(probe_send(frame, self._throttle))
            case Sabotage():
                session.send(Sabotaged(self._saboteur.do(frame.harm)))
            case _:
                raise ProtocolError(f"the host sent a {type(frame).__name__}, which only a drive sends")

    def _begin_job(self, session: HostSession, job: Job) -> None:
        if self._job is not None and self._job.frame.overlap:
            raise ProtocolError("the host sent a second job in a session whose slices overlap; dial again for it")
        if self.health is not None:
            self.health.begin()
        device, stopwatch = self._identity.device, self._stopwatch
        exchange = ClientExchange(session.send_encoded, session.receive, stopwatch)
        trainer = Trainer(job, self._shard, device_number(device), stopwatch, exchange)
        worker = GradientWorker(job, trainer.loaded, device, stopwatch)
        # Ready for slices before the host is told so.
        self._job = DriveJob(job, trainer, DeviceSteps(session, job, worker, stopwatch, self._saboteur.next_damage))
        session.send(Ready(sum(p.numel() for p in trainer.model.parameters())))

    def _compute(self, session: HostSession, task: Train | Step) -> None:
        job = self._ready()
        job.steps.load(task)
        if self._disturbance.running:  # the scheduler owes a task that has slept, which no wait of ours shall earn
            wait_for_fresh_slice(self._stopwatch.now)
        if self._meter is not None:
            self._meter.begin()
        self._stopwatch.take()
        if isinstance(task, Step):
            job.steps.finish(self._stepped(task, job.steps.compute(task)))
        else:
            for message in pack(self._train(job, task)):
                session.send_encoded(message)

    def _train(self, job: DriveJob, task: Train) -> list[bytes]:
        done = job.trainer.train(task, job.steps.extras)
        frames = job.trainer.encode(task.round, self._saboteur.next_damage, done)
        seconds, peak_bytes = self._stopwatch.take(), high_water_bytes()
        trained = Trained(
            *(task.round, done.samples, done.steps, done.loss, seconds, done.read_bytes, peak_bytes),
            step_seconds=list(done.step_seconds),
            metrics={} if done.reply is None else done.reply.metrics,
        )
        return [*frames, encode(msgspec.structs.replace(trained, metered=self._metered(), health=self._health()))]

    def _stepped(self, task: Step, done: LocalStep) -> Stepped:
        seconds, peak_bytes = self._stopwatch.take(), self._peak_bytes(done.samples)
        stepped = Stepped(task.step, done.samples, done.loss, seconds, done.read_bytes, peak_bytes)
        return msgspec.structs.replace(stepped, metered=self._metered(), health=self._health() or msgspec.UNSET)

    def _metered(self) -> Metered | None:
        return None if self._meter is None else self._meter.end()

    def _health(self) -> DriveHealth | None:
        return None if self.health is None else self.health.read()

    def _peak_bytes(self, records: int) -> int:
        """Return the most memory that was held; it is read anew when the batch changes, for it hardly rises else."""
        if records != self._peak[0]:
            self._peak = records, high_water_bytes()
        return self._peak[1]

    def _measure(self, task: Measure) -> Measured:
        job = self._ready()
        return bare_loop.run_in_process(job.frame, task, self._shard) if task.bare else job.trainer.measure(task)

    def _ready(self) -> DriveJob:
        if self._job is None:
            raise ProtocolError("the host sent weights or a task before any job")
        return self._job


def describe_failure(task: str, error: BaseException) -> Failed:
    """Return what the host is told of a task that raised an error.

    It is the user's code that failed if a model cannot be built or data cannot be read, or if no error of csd-emu's
    came, unless the drive ran out of memory, its own files could not be read, or an assertion was not the user's.
    """
    user = isinstance(error, ModelError | DataError) or not isinstance(error, CsdError | OSError | AssertionError)
    user = user or (isinstance(error, OSError | AssertionError) and names_user_code(error))
    user = user and not lacks_memory(error)
    inner = user_error(error) or error
    name = bounded(type(error if isinstance(error, DataError | OptimiserFailed) else inner).__name__, 200)
    return Failed(task, describe_error(error), name, format_user_traceback(error) if user else "", user)


def device_facts() -> dict[str, str]:
    """Return what the host should know of this machine, for the record: versions, processors and their flags."""
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    processors = re.findall(r"^model name\s*: (.*)", cpu, re.MULTILINE) or [platform.machine()]  # ARM's have no name
    flags = re.findall(r"^(?:features|flags)\s*: (.*)", cpu, re.MULTILINE | re.IGNORECASE)
    return {
        "agent": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "machine": platform.machine(),
        "kernel": platform.release(),
        "processor": f"{processors[0]}, {len(os.sched_getaffinity(0))} of them",
        "cpu_aes": "yes" if any("aes" in line.split() for line in flags) else "no",
    }
