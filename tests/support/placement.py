"""Random models, drives and links for the laws of placement, and the seconds of a cut event by event."""

import math
from dataclasses import replace

from hypothesis import strategies as st

from csd_emu.perfmodel.host_node import reduce_seconds
from csd_emu.perfmodel.overlap.layer_work import TensorCost
from csd_emu.perfmodel.overlap.simulated_link import OwnLink, SharedLink
from csd_emu.perfmodel.overlap.steady_steps import ExchangeModel, Passes, settle
from csd_emu.perfmodel.overlap.stepped_ranges import BlockStepping
from csd_emu.perfmodel.split.cut_costs import CutCosts
from csd_emu.perfmodel.split.split_problem import DeviceCost, HostPlace, LayerSplitCost, SplitProblem
from csd_emu.perfmodel.timeline import Link
from firmware_agent.common.send_queue import TransferSettings
from tests.support.every_event import Drive, EveryEvent

seconds = st.floats(1e-3, 1.0)
schedules = st.just(TransferSettings()) | st.builds(
    TransferSettings, st.just("priority"), st.integers(1000, 200_000), st.integers(1000, 500_000)
)


@st.composite
def layers(draw: st.DrawFn, most: int = 6) -> tuple[LayerSplitCost, ...]:
    """Two layers and more, of which some cannot be cut before."""
    return tuple(
        LayerSplitCost(
            name=f"layer{place}",
            tensors=tuple(
                TensorCost(f"layer{place}.{number}", size)
                for number, size in enumerate(draw(st.lists(st.integers(1, 500_000), min_size=place == 0, max_size=2)))
            ),
            forward_operations=draw(st.floats(1, 1e3)),
            backward_operations=draw(st.floats(1, 1e3)),
            tail_bytes=1e4 * (most - place),
            crossing_bytes=None if place == 0 else draw(st.none() | st.integers(1, 20_000)),
            pull_only_bytes=draw(st.integers(0, 100)),
            reason="the test says so",
        )
        for place in range(draw(st.integers(2, most)))
    )


@st.composite
def drives(draw: st.DrawFn, most: int = 4, equal: bool = False, local: bool = True) -> tuple[DeviceCost, ...]:
    """One drive and more, and perhaps the host's own part behind them."""
    one = st.builds(
        DeviceCost,
        device=st.just(""),
        batch_size=st.integers(1, 64),
        forward_seconds=seconds,
        backward_seconds=seconds,
        encode_seconds=st.floats(0, 0.1),
        read_seconds=st.floats(0, 0.1),
        link_bytes_per_second=st.floats(1e5, 1e9),
        link_latency_seconds=st.floats(0, 1e-3),
        parts_factor=st.floats(1, 1.2),
        in_parts=st.booleans(),
    )
    count = draw(st.integers(1, most))
    found = [draw(one)] * count if equal else [draw(one) for _ in range(count)]
    named = [replace(drive, device=f"csd-{number:02d}") for number, drive in enumerate(found)]
    if local and draw(st.booleans()):
        named.append(replace(draw(one), device="host", local=True))
    return tuple(named)


@st.composite
def situations(
    draw: st.DrawFn,
    schedule: st.SearchStrategy[TransferSettings | None] = st.none(),  # noqa: B008
    equal: bool = False,
    local: bool = True,
) -> SplitProblem:
    """All that a decision rests on; with a schedule, steps of a model that is cut overlap too."""
    sending = draw(schedule)
    return SplitProblem(
        layers=draw(layers()),
        drives=draw(drives(equal=equal, local=local)),
        host=HostPlace(draw(seconds), draw(seconds)),
        link=Link(draw(st.floats(1e5, 1e9)), draw(st.floats(0, 1e-3)), draw(st.booleans())),
        sending=sending,
        cut_overlaps=sending is not None,
        slice_seconds=draw(st.floats(0, 1e-4)),
        block_bytes=draw(st.sampled_from([1 << 16, 1 << 18, None])),
    )


def simulate_every_event(situation: SplitProblem, cut: int) -> float:
    """What `simulate_cut` says, from the simulation of every event at every drive."""
    amounts, sending, link = CutCosts(situation), situation.sending, situation.link
    assert sending is not None
    sizes = ((), *(tuple(tensor.size_bytes for tensor in layer.tensors) for layer in situation.layers[:cut]))
    size = sum(map(sum, sizes))
    host_seconds = reduce_seconds(size, len(situation.drives))
    stepping = BlockStepping(
        situation.block_bytes or max(1, size), size / host_seconds if size else math.inf, situation.barrier
    )
    local = next((_passes(amounts, drive, cut) for drive in situation.drives if drive.local), None)
    whole = cut == len(situation.layers)
    each = [_drive(amounts, drive, cut, whole) for drive in situation.remote]
    shared = SharedLink(
        link.bytes_per_second * (1 if link.shared else len(each)), link.latency_seconds, situation.slice_seconds
    )
    host = 0.0 if whole else float(amounts.host_seconds[cut])
    return settle(EveryEvent(each, shared, ExchangeModel(sizes, sending, stepping), local=local, turn_seconds=host))


def _passes(amounts: CutCosts, drive: DeviceCost, cut: int) -> Passes:
    forward, backward, read = amounts.layer_seconds(drive, cut)
    return Passes((read, *forward.tolist()), (0.0, *backward.tolist()))


def _drive(amounts: CutCosts, drive: DeviceCost, cut: int, whole: bool) -> Drive:
    link = amounts.situation.link
    rate = drive.link_bytes_per_second if link.shared else min(drive.link_bytes_per_second, link.bytes_per_second)
    own, passes = OwnLink(rate, drive.link_latency_seconds), _passes(amounts, drive, cut)
    if whole:
        return Drive(passes, own)
    crossing, label = float(amounts.crossing_bytes[cut]), float(amounts.labels[cut])
    up, down = (max(1, round(drive.batch_size * size)) for size in (crossing + label, crossing))
    return Drive(passes, own, up, down)
