"""Step time of each cut: in closed form where nothing overlaps, simulated where the exchange overlaps computing.

Where all is received, then computed, then sent: two steps of `csd_emu.perfmodel.step` with a turn between them: each
drive receives the parameters of its layers, reads, computes its forward pass and sends activations and labels; the host
begins when the last of them has arrived, computes the tail of all records and sends each drive the gradient of its
activations; each drive computes its backward pass and sends its gradients; when all are there the host adds them up and
steps, the tail's parameters too. With nothing moved there is no turn, and one step. All cuts are worked out at once.

Where it overlaps, `csd_emu.perfmodel.overlap.steady_steps` says who waits for whom. To simulate a cut takes
milliseconds, so cuts are first given a bound that no schedule can beat, and only those are simulated whose bound is
below the best found so far. With drives that are alike the choice is the same as if all had been. With unlike ones a
simulation takes some times as long and bounds are wider, so the search ends, too, when `PATIENCE` cuts in turn, those
of the lowest bounds first, were no better than the best.

Why the bound holds. In a step, first all gradients of the drives' layers are pushed, since no forward pass ends before
the parameters made of them have come; then all activations; then the host computes; then the activations' gradients are
pulled, without which no backward pass begins. So these add up: bytes of both kinds over the host's side, the host's
seconds, and the quickest pull. And each drive on its own computes, pushes, waits for the host and pulls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from csd_emu.perfmodel.host_node import reduce_seconds
from csd_emu.perfmodel.overlap.simulated_link import SharedLink, host_side, own_side
from csd_emu.perfmodel.overlap.steady_steps import DriveKind, ExchangeModel, Passes, SteadySteps, settle
from csd_emu.perfmodel.split.cut_costs import CutCosts
from csd_emu.perfmodel.split.split_problem import DeviceCost, Floats, SplitProblem
from csd_emu.perfmodel.step import DeviceWork, DriveFigures, time_step
from firmware_agent.common.errors import ConfigurationError

# With unlike drives so many cuts are simulated in turn that win nothing. Chosen by trial: 4 lost up to 1 % of a step.
PATIENCE = 8


def barrier_seconds(amounts: CutCosts) -> Floats:
    """Return (cuts,) how long a step takes with each number of layers on the drives; NaN where no cut is possible.

    The last entry, with all of them, is what `csd_emu.perfmodel.timeline.compose` says of it, the others what
    `csd_emu.perfmodel.timeline.compose_cut` says.
    """
    link, devices = amounts.situation.link, amounts.situation.drives
    local = np.array([device.local for device in devices])
    figures = DriveFigures(
        *(np.full(len(devices), np.inf), np.zeros(len(devices))),  # reading is in seconds already
        np.array([device.link_bytes_per_second for device in devices]),
        np.array([device.link_latency_seconds for device in devices]),
    )
    pull, push = (sizes[:, None] * ~local for sizes in (amounts.pull_bytes, amounts.push_bytes))
    cuts = np.flatnonzero(~np.isnan(amounts.crossing_bytes[:-1]))
    records = np.array([device.batch_size for device in devices]) * ~local
    down = records * amounts.crossing_bytes[cuts, None]
    up = down + records * amounts.labels[cuts, None]
    forward, backward = amounts.forward_seconds.T, (amounts.backward_seconds + amounts.encode_seconds).T
    # The host reads its next records ahead, beside what follows the turn; with nothing moved, beside all of it.
    read = np.array([device.read_seconds for device in devices])
    read_first, read_ahead = np.where(local, 0.0, read), np.where(local, read, 0.0)
    front = time_step(DeviceWork(pull[cuts], read_first + forward[cuts], up), figures, link)
    turn_seconds = (front.end_seconds + amounts.host_seconds[cuts])[:, None]
    rest = DeviceWork(down, np.maximum(backward[cuts], read_ahead), push[cuts])
    seconds = np.full(amounts.unmoved + 1, np.nan)
    seconds[cuts] = time_step(rest, figures, link, turn_seconds).end_seconds
    seconds[-1] = time_step(DeviceWork(pull[-1], amounts.compute_seconds[:, -1], push[-1]), figures, link).end_seconds
    moved = amounts.push_bytes[-1] - amounts.push_bytes
    return np.asarray(seconds + _reduce(amounts.push_bytes, len(devices)) + _reduce(moved, 0))


def _reduce(sizes: Floats, gradients: int) -> Floats:
    return sizes * (reduce_seconds(1 << 40, gradients) / (1 << 40))  # it is proportional to them


def simulate_cut(amounts: CutCosts, cut: int) -> float:
    """Return how long a step takes once steps repeat, with `cut` layers on the drives.

    Raises:
        ConfigurationError: the situation has no `sending`, or the model cannot be cut there.
    """
    situation, sending = amounts.situation, amounts.situation.sending
    if sending is None or not 0 < cut <= amounts.unmoved or math.isnan(amounts.crossing_bytes[cut]):
        raise ConfigurationError(f"cut {cut}: cannot be simulated; it needs a schedule and a place to cut")
    local = next((drive for drive in situation.drives if drive.local), None)
    tensors = amounts.tensor_bytes[:cut]
    host_seconds = reduce_seconds(int(amounts.push_bytes[cut]), len(situation.drives))
    run = SteadySteps(
        _kinds(amounts, cut),
        host_side(situation.link, len(situation.remote), situation.slice_seconds),
        ExchangeModel.of(tensors, sending, host_seconds, situation.block_bytes, situation.barrier),
        local=None if local is None else _passes(amounts, local, cut),
        turn_seconds=float(amounts.host_seconds[cut]),
    )
    return settle(run)


def bounds(amounts: CutCosts) -> Floats:
    """Return (cuts,) seconds that no schedule can beat; NaN where no cut is possible."""
    situation = amounts.situation
    remote, link = situation.remote, host_side(situation.link, len(situation.remote), situation.slice_seconds)
    near = np.array([drive.local for drive in situation.drives])
    own = [own_side(situation.link, drive.link_bytes_per_second, drive.link_latency_seconds) for drive in remote]
    rates = np.array([[min(side.bytes_per_second, link.bytes_per_second)] for side in own])
    latencies = np.array([[link.latency_seconds + side.latency_seconds] for side in own])
    up = (amounts.batches * (amounts.crossing_bytes + amounts.labels)[:, None]).T
    down = (amounts.batches * amounts.crossing_bytes[:, None]).T
    cut = np.arange(amounts.unmoved + 1) < amounts.unmoved
    computing = amounts.compute_seconds
    turning = np.where(cut, (up + down) / rates + 2 * latencies, 0.0)
    tail = np.where(cut, amounts.host_seconds + 0 * amounts.crossing_bytes, 0.0)
    lowest = np.maximum.reduce([*(computing[~near] + turning + tail), *(computing[near] + tail)])
    carried = (amounts.push_bytes * len(remote) + up.sum(axis=0)) / link.bytes_per_second
    quickest = len(remote) * down.min(axis=0) / link.bytes_per_second + np.where(cut, latencies.min(), 0.0)
    with_turn = np.where(cut, _exchanging(amounts, link) + quickest + latencies.min() + tail, 0.0)
    return np.asarray(np.maximum.reduce([lowest, carried + quickest + tail, with_turn]))


def _exchanging(amounts: CutCosts, link: SharedLink) -> Floats:
    """Return (cuts,) the least from when the first backward pass begins to when all activations have crossed.

    The gradients of layers up to l are ready when a drive's backward pass has come to l. Those of all drives cross, and
    what is pulled last of them is waited for by every drive before its forward passes from l on. Then its activations
    cross. What crosses of some drives crosses after the first of these is ready: of the drives in any order, the last,
    the last two, and so on.
    """
    kinds = _Kinds.of(amounts)
    pushed = amounts.push_bytes[1:, None] / link.bytes_per_second
    drives = np.cumsum(kinds.drives[::-1])[::-1]
    up = np.cumsum((kinds.drives * kinds.batches)[::-1])[::-1]
    records = np.nan_to_num(amounts.crossing_bytes + amounts.labels)[:-1] / link.bytes_per_second
    backward = forward = np.full((amounts.unmoved, amounts.unmoved), np.inf)
    ready, done = np.zeros_like(backward), np.zeros_like(forward)
    for kind in reversed(range(len(drives))):  # the least of this kind and those behind it
        backward = np.minimum(backward, kinds.gaps(kinds.backward, kind))
        forward = np.minimum(forward, kinds.gaps(kinds.forward, kind))
        np.maximum(ready, backward + drives[kind] * pushed, out=ready)
        np.maximum(done, forward + up[kind] * records, out=done)
    layers, cuts = np.indices(ready.shape)
    held = np.where((layers < cuts) & (pushed > 0), ready + done, 0.0)
    return np.append(held.max(axis=0) + 2 * link.latency_seconds, 0.0)


@dataclass(frozen=True)
class _Kinds:
    """The kinds of remote drives, the quickest first.

    Attributes:
        forward, backward, factors: (kinds, layers) seconds of the first 0 to n - 1 layers at once, and what they are
            multiplied by with so many layers.
        batches: (kinds,) records of a step.
        drives: (kinds,) how many there are.
    """

    forward: Floats
    backward: Floats
    factors: Floats
    batches: Floats
    drives: Floats

    @classmethod
    def of(cls, amounts: CutCosts) -> _Kinds:
        """Return those of a situation."""
        places = [place for place, _ in amounts.kinds]
        factors = amounts.factors[places]
        passes = [amounts.forward_seconds[places] / factors, amounts.backward_seconds[places] / factors, factors]
        batches = [[amounts.situation.drives[place].batch_size] for place in places]
        alike: dict[tuple[float, ...], int] = {}
        for row, (_, drives) in zip(
            np.hstack([batches, *(each[:, :-1] for each in passes)]), amounts.kinds, strict=True
        ):
            kind = tuple(row.tolist())
            alike[kind] = alike.get(kind, 0) + drives
        kinds = np.array(sorted(alike))
        counts = np.array([alike[kind] for kind in sorted(alike)], dtype=np.float64)
        batch, (forward, backward, factors) = kinds[:, 0], np.split(kinds[:, 1:], 3, axis=1)
        order = np.argsort(backward[:, -1] + forward[:, -1], kind="stable")
        return cls(forward[order], backward[order], factors[order], batch[order], counts[order])

    def gaps(self, seconds: Floats, kind: int) -> Floats:
        """Return (layers, cuts) the seconds of the passes of a kind from a layer to a cut."""
        own = seconds[kind]
        return np.asarray((own - own[:, None]) * self.factors[kind])


def patience_of(situation: SplitProblem) -> int | None:
    """Return after how many simulated cuts that win nothing a search ends; None if none is left out that could win."""
    alike = len({replace(drive, device="") for drive in situation.remote}) == 1
    return None if alike else PATIENCE


def find_best(
    seconds: Callable[[int], float],
    lowest: Floats,
    candidates: Sequence[int],
    known: dict[int, float],
    patience: int | None = None,
) -> dict[int, float]:
    """Return seconds of cuts, the best one's among them; without patience's end, what is left out cannot be better.

    Args:
        seconds: of a cut.
        lowest: (cuts,) that `seconds` never goes below.
        candidates: to choose from.
        known: seconds of cuts that are known already.
        patience: the search ends after so many in turn that were no better than the best; None for never.
    """
    found, idle = dict(known), 0
    best = min((found[cut] for cut in candidates if cut in found), default=math.inf)
    for cut in sorted((each for each in candidates if each not in found), key=lambda each: float(lowest[each])):
        if lowest[cut] >= best or idle == patience:
            break
        found[cut] = seconds(cut)
        idle = 0 if found[cut] < best else idle + 1
        best = min(best, found[cut])
    return found


def _kinds(amounts: CutCosts, cut: int) -> list[DriveKind]:
    """Return the kinds of remote drives."""
    situation, kinds = amounts.situation, []
    for place, drives in amounts.kinds:
        drive = situation.drives[place]
        crossing, label = float(amounts.crossing_bytes[cut]), float(amounts.labels[cut])
        up, down = (max(cut < amounts.unmoved, round(drive.batch_size * size)) for size in (crossing + label, crossing))
        own = own_side(situation.link, drive.link_bytes_per_second, drive.link_latency_seconds)
        kinds.append(DriveKind(drives, _passes(amounts, drive, cut), own, up, down))
    return kinds


def _passes(amounts: CutCosts, drive: DeviceCost, cut: int) -> Passes:
    """Return what a drive computes; reading comes first, as a layer of its own."""
    forward, backward, read = amounts.layer_seconds(drive, cut)
    return Passes((read, *forward.tolist()), (0.0, *backward.tolist()))
