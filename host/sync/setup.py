"""A synchronous training is put together here, from a checked request and the devices that are there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from csd_emu.communication.compose import OverlapComposer
from csd_emu.deadline import Deadline
from csd_emu.profiles import get_profile
from firmware_agent.exchange import Array
from firmware_agent.heap import set_aside
from firmware_agent.wire import PhaseSeconds
from host.accounting import Accountant
from host.failures import Failures
from host.faults import RunFaults
from host.fleet import Fleet
from host.placement.placed import Placed
from host.records import OnEvent
from host.rounds import job_frame
from host.run_request import RunRequest
from host.servers.local_training import parts_of
from host.session import DeviceSession
from host.sync.channel import OnSlices
from host.sync.composing import make_overlap
from host.sync.disturbances import Disturbances
from host.sync.exchange import StepExchange
from host.sync.optimiser import make_optimiser
from host.sync.participants import Participants
from host.sync.plan import SyncPlan
from host.sync.slice_log import StepLogs
from host.sync.stepping import TailClock
from host.sync.tail import Tail
from host.sync.together import Together
from host.sync.training import SyncTraining
from host.tuning.base import Tuner


def make_sync_training(
    request: RunRequest,
    plan: SyncPlan,
    fleet: Fleet,
    list_existing: Callable[[], Collection[str]],
    accountant: Accountant,
    faults: RunFaults,
    on_event: OnEvent,
    on_slices: OnSlices = lambda _: None,
    tuner: Tuner | None = None,
    pause: Callable[[], bool] = lambda: False,
    together: Together | None = None,
    failures: Failures | None = None,
) -> SyncTraining:
    """Return the training of a synchronous job; nothing is sent yet.

    `on_slices` is told what became of the slices of steps that overlap; `tuner` and `pause` are those of
    `host.sync.training.SyncTraining`, and so is `together`; `failures` is told when the user's code fails.
    """
    job = request.job
    structure = request.evaluator.structure()
    weights = _as_precision(request.evaluator.initial_weights(), job.sync.precision)
    optimiser = make_optimiser(job, structure, weights)
    disturbances = Disturbances(job.disturb, faults.slow)
    set_aside()  # with the optimiser has come all of torch that steps need

    async def before_step(session: DeviceSession, step: int, deadline: Deadline) -> None:
        await faults.before_task(session, deadline)
        if (detail := await disturbances.apply(session, step, deadline)) is not None:
            faults.record(session.device, detail)

    def speaks(session: DeviceSession, step: int) -> bool:
        return faults.waits_for(session.device) or disturbances.changes(session, step)

    logs = StepLogs(on_slices)
    placed = request.placed
    frame = job_frame(
        job,
        request.spec,
        request.dataset.image_scale,
        overlap=request.communication.overlap,
        cut=None if placed is None else placed.layer,
    )
    tail = None if placed is None else _make_tail(request, placed, weights)
    make_stepper, make_training = parts_of(together)
    stepper = make_stepper(
        weights,
        structure,
        job.sync.batch_norm,
        optimiser,
        StepExchange(frame, job.watchdog, on_event, before_step, speaks, logs.add, failures),
        accountant,
        plan.expected,
        job.sync.patience,
        tail,
        None if placed is None else _tail_clock(request, placed),
    )
    nodes = [node.name for node in request.config.list_nodes()]
    return make_training(
        job,
        Participants(nodes, fleet, list_existing, job.watchdog, on_event, failures),
        stepper,
        optimiser,
        plan,
        disturbances,
        accountant,
        request.evaluator,
        on_event,
        request.communication,
        logs,
        tuner,
        pause,
        together,
    )


def overlap_of(request: RunRequest) -> OverlapComposer | None:
    """Return what composes the steps of a job whose exchange overlaps computing; None if they do not."""
    job, placed = request.job, request.placed
    if not request.communication.composed:
        return None
    weights = _as_precision(request.evaluator.initial_weights(), job.sync.precision)
    optimiser = make_optimiser(job, request.evaluator.structure(), weights)
    barrier = optimiser.needs_all is not None
    block_bytes = None if barrier else optimiser.block_bytes
    moved = () if placed is None else placed.moved
    return make_overlap(request.evaluator, weights, job.sync.batch_norm, block_bytes, barrier, moved, request.shares)


def _make_tail(request: RunRequest, placed: Placed, weights: dict[str, Array]) -> Tail:
    job, structure = request.job, request.evaluator.structure()
    cut = request.evaluator.cut(placed.layer, job.sync.precision)
    return Tail(cut, weights, structure.trained, structure.tied, job.sync.batch_norm, job.seed, len(placed.moved))


def _tail_clock(request: RunRequest, placed: Placed) -> TailClock:
    """Return what says how long the host's part of a step takes where that is not this machine's clock to say."""
    ratio = get_profile(request.config.host.profile).ratio
    middle = None if ratio is None else ratio.middle.value

    def seconds(records: int, fronts: Sequence[PhaseSeconds]) -> float:
        return placed.tail_seconds(records, fronts, request.host_model, middle)

    return seconds


def _as_precision(weights: dict[str, Array], precision: str) -> dict[str, Array]:
    """Return the weights with their floating-point tensors in this precision."""
    return {
        name: array.astype(precision) if np.issubdtype(array.dtype, np.floating) else array
        for name, array in weights.items()
    }
