"""Duration of a step of an array, in closed form: arrays in, arrays out.

A device receives over the link, works (it reads from flash, then computes phase by phase), and sends over the link. The
link is full duplex. The host's side of it is `csd_emu.perfmodel.sharing.Link`; the device's own side runs beside it,
for the host buffers: a transfer ends when both have carried it. A device's latency lies between it and the host's side:
behind that in the receive direction, before it in the send direction. With transfers of s bytes, the device's own rate
r and latency l, the host's latency h, and C the seconds in which the host's side has carried them:

* received = max(C, begin + s / r) + h + l, for all devices begin together;
* ready = received + work;
* sent = max(C, ready + l + s / r) + h.

A transfer of no bytes takes no time, latency included. A step ends with the last send, and not before a device that
sends nothing is ready. So its seconds never fall when a byte count, a phase or a latency grows or a bandwidth shrinks:

1. Receiving. Each transfer's service up to a moment is the integral of bandwidth / n, with n the transfers in progress.
   Let one transfer grow or the bandwidth shrink. Were some transfer the first to end earlier than before, then up to
   that moment every transfer of before would still be in progress, n at least what it was, and its service at most
   what it was: it could not have ended. So no transfer ends earlier.
2. Working adds to a device's own time alone. So no send begins earlier.
3. Sending. The host's side ends its last transfer at the maximum over t of t + (bytes that begin at t or later) /
   bandwidth. That falls in no begin and in no byte count. The own sides' ends each rise too.

Arrays may have leading axes, of configurations, servers or cuts; the last one is of the devices. The host's own part,
and what it does behind the last send, are the caller's: a step with both takes max(end, own part) + behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from csd_emu.perfmodel.sharing import Floats, Link
from csd_emu.profiles import Profile
from firmware_agent.common.errors import ConfigurationError


@dataclass(frozen=True)
class DriveFigures:
    """What does not change from step to step, (devices,) float64 each: of a device's flash, and of its own side."""

    flash_bytes_per_second: Floats
    flash_latency_seconds: Floats
    link_bytes_per_second: Floats
    link_latency_seconds: Floats

    @classmethod
    def of(cls, profiles: Sequence[Profile]) -> DriveFigures:
        """Return the figures of one drive per profile."""
        return cls(
            np.array([profile.flash_bytes_per_second.value for profile in profiles]),
            np.array([profile.flash_latency_seconds.value for profile in profiles]),
            np.array([profile.link_bytes_per_second.value for profile in profiles]),
            np.array([profile.link_latency_seconds.value for profile in profiles]),
        )

    def read_seconds(self, read_bytes: Floats) -> Floats:
        """Return (.., devices) how long each reads its bytes at once; none take no time."""
        return np.asarray(read_bytes / self.flash_bytes_per_second + (read_bytes > 0) * self.flash_latency_seconds)


@dataclass(frozen=True)
class DeviceWork:
    """What the devices do in a step, (.., devices) float64 each.

    Attributes:
        receive_bytes: from the host.
        work_seconds: reading and computing.
        send_bytes: to the host.
    """

    receive_bytes: Floats
    work_seconds: Floats
    send_bytes: Floats

    def __post_init__(self) -> None:
        """Refuse what no device does.

        Raises:
            ConfigurationError: a number is negative or not finite.
        """
        for name, values in vars(self).items():
            # A sum with a NaN or an infinity in it is neither finite nor cheap to get past: two passes see all.
            if values.size and not (values.min() >= 0 and values.max() < np.inf):
                raise ConfigurationError(f"{name}: has a value that is negative or not finite; no device does that")


@dataclass(frozen=True)
class StepTimes:
    """When what happens in a step.

    Attributes:
        received_seconds: (.., devices) when each has its weights.
        ready_seconds: (.., devices) when each has computed.
        entered_seconds: (.., devices) when what each sends comes to the host's side; if it sends nothing, when ready.
        end_seconds: (..,) when the last send has arrived and all have computed.
    """

    received_seconds: Floats
    ready_seconds: Floats
    entered_seconds: Floats
    end_seconds: Floats


def time_step(work: DeviceWork, figures: DriveFigures, link: Link, begin_seconds: Floats | float = 0.0) -> StepTimes:
    """Return when devices that begin together receive, work and send.

    Args:
        work: of the devices.
        figures: of their own sides of the link.
        link: the host's side.
        begin_seconds: (.., 1) when they begin, or one number for all.
    """
    received = np.where(
        work.receive_bytes > 0,
        np.maximum(
            link.carry_together(work.receive_bytes, begin_seconds),
            begin_seconds + work.receive_bytes / figures.link_bytes_per_second,
        )
        + link.latency_seconds
        + figures.link_latency_seconds,
        begin_seconds,
    )
    ready = received + work.work_seconds
    sends = work.send_bytes > 0
    entered = np.where(sends, ready + figures.link_latency_seconds, ready)
    begins = np.where(sends, entered, -np.inf)
    own = (begins + work.send_bytes / figures.link_bytes_per_second).max(axis=-1, initial=-np.inf)
    sent = np.maximum(own, link.carry_last(work.send_bytes, begins)) + link.latency_seconds
    return StepTimes(received, ready, entered, np.maximum(sent, ready.max(axis=-1, initial=0.0)))


def finish_seconds(work: DeviceWork, times: StepTimes, figures: DriveFigures, link: Link) -> Floats:
    """Return (devices,) when each send of one step has arrived; when a device is ready if it sends nothing.

    The last of them is `times.end_seconds`. Unlike that it takes one pass over the link's events.
    """
    sizes, entered = work.send_bytes, times.entered_seconds
    carried = np.array(link.carry_each(sizes.tolist(), entered.tolist()))
    arrived = np.maximum(carried, entered + sizes / figures.link_bytes_per_second) + link.latency_seconds
    return np.where(sizes > 0, arrived, entered)
