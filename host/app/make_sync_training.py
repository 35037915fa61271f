"""Assembly of a synchronous training from a checked request and the devices that are present."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from csd_emu.perfmodel.overlap.overlapped_step import OverlapComposer
from csd_emu.profiles import get_profile
from csd_emu.util.deadline import Deadline
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.session_frames import Job
from firmware_agent.common.heap import set_aside
from firmware_agent.common.slices import Array
from host.app.run_request import RunRequest
from host.core.evaluation import NormSum
from host.core.failures import Failures
from host.core.records import OnEvent
from host.core.states.peer_servers import PeerServers
from host.fleet.device_session import DeviceSession
from host.fleet.fleet import Fleet
from host.fleet.shards import dealt_alike
from host.training.accounting import Accountant
from host.training.host_optimiser import TrainedModel, make_optimiser
from host.training.round_exchange import job_frame
from host.training.run_faults import RunFaults
from host.training.split.split_model import SplitModelInfo
from host.training.sync.disturbances import Disturbances
from host.training.sync.exchange.channel import OnSlices
from host.training.sync.exchange.step_exchange import StepExchange
from host.training.sync.host_part import HostPart, ServerModelClock
from host.training.sync.participants import Participants
from host.training.sync.round_totals import PLANNED, RunGuide
from host.training.sync.run_transfers import RunTransfers, make_overlap
from host.training.sync.server_model.server_model import ServerModel
from host.training.sync.several_servers import make_parts
from host.training.sync.sync_step import Stepper
from host.training.sync.sync_training import SyncTraining


def make_participants(
    request: RunRequest,
    fleet: Fleet,
    list_existing: Callable[[], Collection[str]],
    on_event: OnEvent,
    failures: Failures | None = None,
) -> Participants:
    """Return who can take part in the steps of a job; arguments are those of `Participants`."""
    nodes = [node.name for node in request.config.list_nodes()]
    return Participants(nodes, fleet, list_existing, request.job.watchdog, on_event, failures)


def make_sync_training(
    request: RunRequest,
    participants: Participants,
    accountant: Accountant,
    faults: RunFaults,
    on_slices: OnSlices = lambda _: None,
    guide: RunGuide = PLANNED,
    together: PeerServers | None = None,
) -> SyncTraining:
    """Return the training of a synchronous job; nothing is sent yet.

    `on_slices` is told what became of the slices of steps that overlap; `together` are the other servers.
    """
    plan = request.sync
    if plan is None:
        raise ValueError(f"a job of mode: {request.job.mode} has no plan of synchronous steps")
    disturbances = Disturbances(request.job.disturb, faults.slow)
    model = _make_model(request)
    set_aside()  # with the optimiser has come all of torch that steps need

    async def before_step(session: DeviceSession, step: int, deadline: Deadline) -> None:
        await faults.before_task(session, deadline)
        if (detail := await disturbances.apply(session, step, deadline)) is not None:
            faults.record(session.device, detail)

    def speaks(session: DeviceSession, step: int) -> bool:
        return faults.waits_for(session.device) or disturbances.changes(session, step)

    transfers = RunTransfers(request.communication, on_slices)
    ending, make_training = make_parts(together)
    exchange = StepExchange(
        *(_step_frame(request), request.job.watchdog, participants.on_event, before_step, speaks),
        *(transfers.add, participants.run_failures),
    )
    alike = dealt_alike(request.config.list_nodes(), request.job.data, plan.sizes)
    stepper = Stepper(model, plan, exchange, accountant, _make_host_part(request, model), alike, ending)
    return make_training(plan, participants, stepper, disturbances, request.evaluator, transfers, guide)


def _make_model(request: RunRequest) -> TrainedModel:
    structure = request.evaluator.structure()
    weights = _as_precision(request.evaluator.initial_weights(), request.job.sync.precision)
    return TrainedModel(weights, structure, make_optimiser(request.job, structure, weights), _norm_sums(request))


def _step_frame(request: RunRequest) -> Job:
    """Return the frame that tells a drive what it computes steps of."""
    cut = None if request.placed is None else request.placed.layer
    overlap = request.communication.overlap
    return job_frame(request.job, request.spec, request.dataset.image_scale, overlap=overlap, cut=cut)


def _norm_sums(request: RunRequest) -> tuple[NormSum, ...]:
    """Return the sums of a step with batch normalisation over all devices."""
    sync, placed = request.job.sync, request.placed
    if sync.batch_norm != "synchronised":
        return ()
    return request.evaluator.batch_norm_sums(sync.precision, None if placed is None else placed.layer)


def overlap_of(request: RunRequest) -> OverlapComposer | None:
    """Return what composes the steps of a job whose exchange overlaps computing; None if they do not."""
    job, placed = request.job, request.placed
    if not request.communication.composed:
        return None
    model = _make_model(request)
    weights, optimiser = model.weights, model.optimiser
    barrier = optimiser.needs_all is not None
    block_bytes = None if barrier else optimiser.block_bytes
    moved = () if placed is None else placed.moved
    return make_overlap(request.evaluator, weights, job.sync.batch_norm, block_bytes, barrier, moved, request.shares)


def _make_host_part(request: RunRequest, model: TrainedModel) -> HostPart | None:
    """Return the host's part of a model that is cut; None if the devices have all of it."""
    job, placed = request.job, request.placed
    if placed is None:
        return None
    cut = request.evaluator.cut(placed.layer, job.sync.precision)
    trained, tied = model.structure.trained, model.structure.tied
    tail = ServerModel(cut, model.weights, trained, tied, job.sync.batch_norm, job.seed)
    return HostPart(tail, model, _tail_clock(request, placed), len(placed.moved))


def _tail_clock(request: RunRequest, placed: SplitModelInfo) -> ServerModelClock:
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
