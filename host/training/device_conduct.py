"""Refusals of drives in a run: how often in a row each was refused, and which are set aside until they reconnect."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence

from csd_emu.util.node_names import HOST
from firmware_agent.common.errors import ContributionRefused, CsdError, Diverged
from host.config.job_file import JobConfig
from host.core.records import EventKind, OnEvent
from host.core.tensor_sums import Norms
from host.fleet.device_session import DeviceSession
from host.training.contributions import Refusal
from host.training.rounds.client_contract import ClientContract

log = logging.getLogger(__name__)
# Number of refusals in a row after which a drive is set aside.
MOST_REFUSALS = 3


class Conduct:
    """Reports refusals and counts them by session; a device that reconnects starts again at zero.

    Attributes:
        on_event: called with device, what happened, and more about it.
    """

    def __init__(self, on_event: OnEvent) -> None:
        """Begin with nobody refused."""
        self.on_event = on_event
        self._running: weakref.WeakKeyDictionary[DeviceSession, int] = weakref.WeakKeyDictionary()
        self._aside: weakref.WeakSet[DeviceSession] = weakref.WeakSet()
        # Where each device was last accepted, and the devices already reported as diverging since then.
        self._good: dict[str, str] = {}
        self._diverging: set[str] = set()
        self._unchanged: set[str] = set()

    def without_aside(self, sessions: Mapping[str, DeviceSession]) -> dict[str, DeviceSession]:
        """Return those who may take part."""
        return {device: session for device, session in sessions.items() if session not in self._aside}

    def accept(self, session: DeviceSession, where: str, loss: float) -> None:
        """Note that a contribution was taken; `where` names its round or step."""
        self._running.pop(session, None)
        self._good[session.device] = f"{where}, with a loss of {loss:.4g}"
        self._diverging.discard(session.device)

    def note_unchanged(self, device: str, where: str, contract: ClientContract | None, norms: Norms) -> None:
        """Tell, once for a drive, if its client program returned the weights that it was sent, and nothing else."""
        if contract is not None and norms.norm == norms.extra_norm == 0.0 and device not in self._unchanged:
            self._unchanged.add(device)
            program = f"client {contract.code.name!r}"
            told = f"in {where}: {program} returned the weights as they were sent; does it step an optimizer?"
            log.warning("%s: %s", device, told)
            self.on_event(device, EventKind.NOTE, told)

    def refuse(
        self, session: DeviceSession, refusal: Refusal, where: str, at_once: bool = False
    ) -> ContributionRefused:
        """Tell that a contribution was refused, and return the error that takes its place.

        A drive refused `MOST_REFUSALS` times running, or `at_once`, is set aside.
        """
        device = session.device
        self.on_event(device, EventKind.REJECTED, refusal.told(where))
        if refusal.diverging and device not in self._diverging:
            self._diverging.add(device)
            since = (
                f"what was taken of it last was of {self._good[device]}" if device in self._good else "from the start"
            )
            self.on_event(device, EventKind.DIVERGING, f"since {where}: {refusal.detail}; {since}")
        count = self._running[session] = self._running.get(session, 0) + 1
        if (at_once or count >= MOST_REFUSALS) and session not in self._aside:
            self._aside.add(session)
            times = refusal.reason if at_once else f"refused {count} times running"
            self.on_event(device, EventKind.SET_ASIDE, f"{times}; it takes part again once it has dialled anew")
        return ContributionRefused(f"{device}: refused {refusal.told(where)}", refusal.diverging)


def all_diverge(errors: Sequence[CsdError]) -> bool:
    """Whether everybody's contribution was refused, as of a training that diverges; others may have been lost."""
    refused = [error for error in errors if isinstance(error, ContributionRefused)]
    return bool(refused) and all(error.diverging for error in refused)


def diverged(
    on_event: OnEvent, job: JobConfig, where: str, errors: Sequence[CsdError] = (), what: str = ""
) -> Diverged:
    """Tell that the training diverges, and return the error that ends the run, with what may help."""
    why = what or str(next(error for error in errors if isinstance(error, ContributionRefused)))
    whole = f"{where}: the training has diverged{'' if what else ', on all drives'}: {why}; {advice(job)}"
    on_event(HOST, EventKind.DIVERGING, whole)
    return Diverged(whole)


def advice(job: JobConfig) -> str:
    """Return what to change in a job that diverges, with the values that it has."""
    look = "" if job.client is None else f"look at what client {job.client.name} returns, or "
    steps = [f"lower learning_rate (it is {job.learning_rate:g})"]
    if job.momentum:
        steps.append(f"momentum ({job.momentum:g})")
    more = [f"raise batch_size (it is {job.batch_size})"]
    clip = job.chosen_clip_norm
    if job.mode == "sync" or clip is not None:
        more.append("clip gradients: clip_norm is not set" if clip is None else f"lower clip_norm ({clip:g})")
    return f"{look}{' or '.join(steps)}, {', or '.join(more)}; a checkpoint, if there is one, is from before"
