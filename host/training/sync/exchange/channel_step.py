"""A step that is announced to a device and not reported yet, and the order of its frames."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from firmware_agent.common.errors import CsdError, ProtocolError
from firmware_agent.common.frames.step_frames import Activations, Reduce, Stepped
from firmware_agent.common.send_queue import TransferSettings
from firmware_agent.common.wire import AnyFrame
from host.training.sync.exchange.activation_exchange import ActivationExchange, ActivationReceiver
from host.training.sync.exchange.batch_norm_sums import Reductions
from host.training.sync.exchange.gradient_receiver import GradientReceiver
from host.training.sync.exchange.slice_log import SliceLog
from host.training.sync.exchange.weight_release import Cells

Crossed = tuple[ActivationExchange, ActivationReceiver]
"""The parts of a step of a model that is cut, and what takes one device's."""


def check_order(device: str, frame: AnyFrame, sums: Reductions, crossed: Crossed | None) -> None:
    """Raise if a frame comes before something that all others would wait for in vain.

    Raises:
        ProtocolError: a drive reports a step of which it owes activations or sums, or exchanges these out of their
            order: the sums of its forward pass, then its activations, then the sums of its backward pass.
    """
    owes = crossed is not None and not crossed[1].complete
    if isinstance(frame, Activations) and crossed is not None:
        sums.check_forward(device)
    elif isinstance(frame, Reduce) and owes and sums.is_backward(frame):
        raise ProtocolError(f"{device} sent values of its backward pass before it had handed over all activations")
    elif isinstance(frame, Stepped):
        sums.check_complete(device)
        if owes:
            raise ProtocolError(f"{device} reported its step before it had handed over all activations")


@dataclass
class ChannelStep:
    """A step that is announced to the device and not reported yet."""

    number: int
    intake: GradientReceiver
    reductions: Reductions
    sending: TransferSettings
    report: asyncio.Future[Stepped]
    cells: dict[str, Cells] = field(default_factory=dict)
    # Tensors that no step changes: they wait until the device is through with the step before.
    constants: list[str] = field(default_factory=list)
    # Bytes of the others that are not stepped yet.
    held_bytes: int = 0
    slices: SliceLog = field(default_factory=SliceLog)
    crossed: Crossed | None = None
    # Whether the device waits for what the host makes of what has crossed, or for a sum.
    turning: bool = False


def settle(part: ChannelStep, outcome: Stepped | CsdError) -> None:
    """Report a step once: the device's own report, or the error that takes its place."""
    if part.report.done():
        return
    if isinstance(outcome, CsdError):
        part.report.set_exception(outcome)
    else:
        part.report.set_result(outcome)
