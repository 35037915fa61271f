"""A step of a model that is cut: drives' forward passes, activations up, the host's part, gradients down, the rest.

Nothing overlaps: a drive receives its parameters, reads, computes the forward pass of its part, and sends what crosses
the cut. The host's part begins when all have arrived. Then each drive receives the gradients of what it sent, computes
its backward pass, encodes and sends the gradients of its part. Behind the last of them the host steps its own part.
Records that a drive computes in several parts cross in as many turns; they are composed as one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from csd_emu.perfmodel.timeline import Activity, Composed, Link, Span, compose
from csd_emu.util.node_names import HOST

TAIL = "tail"
"""The phase of the host in which it computes its part of the model."""
_FORWARD = "forward"


@dataclass(frozen=True)
class Crossed:
    """What crossed the cut in a step.

    Attributes:
        up_bytes: device -> activations and labels, drive to host, of all that it sent.
        down_bytes: device -> gradients of them, host to drive, of all that it received.
        tail_seconds: of the host's part, for all devices together.
        clock: whose seconds these are.
        step_seconds: in which the host steps the parameters of its part, behind the last gradient; modelled.
    """

    up_bytes: Mapping[str, int]
    down_bytes: Mapping[str, int]
    tail_seconds: float
    clock: str = "modelled"
    step_seconds: float = 0.0

    def is_of(self, devices: Collection[str]) -> bool:
        """Return whether something has crossed both ways for each of these devices."""
        return all(self.up_bytes.get(device) and self.down_bytes.get(device) for device in devices)


def compose_cut(activities: Sequence[Activity], link: Link, crossed: Crossed, host_seconds: float = 0.0) -> Composed:
    """Return when each device does what in a step, and how long the step takes, as `timeline.compose` does.

    Args:
        activities: one per device that takes part; the bytes of what crosses are among theirs.
        link: the host's side of the link.
        crossed: what crosses, and what the host does with it.
        host_seconds: of the host's own work behind the last gradient, beside `crossed.step_seconds`.
    """
    front = compose([_forward(each, crossed) for each in activities], link)
    turn = front.seconds + crossed.tail_seconds
    stepping = host_seconds + crossed.step_seconds
    rest = compose([_backward(each, crossed) for each in activities], link, stepping, turn)
    tail = [Span(HOST, TAIL, front.seconds, turn)] if crossed.tail_seconds else []
    exposed = {part.device: max(0.0, rest.finish_seconds[part.device] - part.work_seconds) for part in activities}
    return Composed((*front.spans, *tail, *rest.spans), rest.seconds, rest.finish_seconds, exposed)


def _forward(part: Activity, crossed: Crossed) -> Activity:
    """Return what a device does up to the turn; records of the host's own come beside what follows it."""
    reads = part.device != HOST
    return replace(
        part,
        receive_bytes=part.receive_bytes - crossed.down_bytes.get(part.device, 0),
        read_bytes=part.read_bytes if reads else 0,
        read_operations=part.read_operations if reads else 0,
        phases={_FORWARD: part.phases.get(_FORWARD, 0.0)},
        send_bytes=crossed.up_bytes.get(part.device, 0),
    )


def _backward(part: Activity, crossed: Crossed) -> Activity:
    reads = part.device == HOST
    return replace(
        part,
        receive_bytes=crossed.down_bytes.get(part.device, 0),
        read_bytes=part.read_bytes if reads else 0,
        read_operations=part.read_operations if reads else 0,
        phases={phase: seconds for phase, seconds in part.phases.items() if phase != _FORWARD},
        send_bytes=part.send_bytes - crossed.up_bytes.get(part.device, 0),
    )
