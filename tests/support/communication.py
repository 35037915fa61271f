"""Random models, links and settings for the laws of communication schedules."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from csd_emu.perfmodel.overlap.layer_work import Costs, LayerCost, TensorCost
from csd_emu.perfmodel.overlap.simulated_link import OwnLink, SharedLink
from csd_emu.perfmodel.overlap.steady_steps import DriveKind, ExchangeModel, Passes, SteadySteps
from csd_emu.perfmodel.overlap.stepped_ranges import BlockStepping
from firmware_agent.common.send_queue import TransferSettings
from tests.support.every_event import Drive, EveryEvent

seconds = st.floats(1e-4, 1e-1)


@st.composite
def models(draw: st.DrawFn, most_layers: int = 5, most_bytes: int = 5000) -> Costs:
    """Layers with 0 to 2 tensors of 1 to `most_bytes` bytes; at least one of them has one."""
    counts = draw(st.lists(st.integers(0, 2), min_size=1, max_size=most_layers).filter(any))
    return tuple(
        LayerCost(
            f"layer{index}",
            tuple(TensorCost(f"layer{index}.{n}", draw(st.integers(1, most_bytes))) for n in range(count)),
            draw(seconds),
            draw(seconds),
        )
        for index, count in enumerate(counts)
    )


links = st.builds(
    SharedLink,
    bytes_per_second=st.floats(1e4, 1e7),
    latency_seconds=st.floats(0, 1e-2) | st.just(0.0),
    slice_seconds=st.floats(0, 1e-3) | st.just(0.0),
)
slice_sizes = st.integers(100, 6000)
priorities = st.builds(
    TransferSettings, st.just("priority"), st.none() | slice_sizes, st.none() | st.integers(1, 20_000)
)
sendings = st.just(TransferSettings()) | priorities
blocks = st.sampled_from([64, 1000, 100_000])


@dataclass(frozen=True)
class Case:
    """An array whose steps are simulated either way.

    Attributes:
        costs: of each drive.
        own: side of each drive; empty for nothing.
        crossing: (push, pull) bytes of each drive behind a cut; empty without one.
    """

    costs: Sequence[Costs]
    link: SharedLink
    sending: TransferSettings
    stepping: BlockStepping = field(default_factory=BlockStepping)
    own: Sequence[OwnLink] = ()
    crossing: Sequence[tuple[int, int]] = ()
    host: Costs | None = None
    tail_seconds: float = 0.0

    @property
    def drives(self) -> list[Drive]:
        """What each drive does."""
        own = self.own or [OwnLink()] * len(self.costs)
        crossing = self.crossing or [(0, 0)] * len(self.costs)
        rows = zip(self.costs, own, crossing, strict=True)
        return [Drive(Passes.of(costs), side, push, pull) for costs, side, (push, pull) in rows]

    @property
    def exchange(self) -> ExchangeModel:
        """What they exchange."""
        sizes = tuple(tuple(tensor.size_bytes for tensor in layer.tensors) for layer in self.costs[0])
        return ExchangeModel(sizes, self.sending, self.stepping)

    def steady(self, merge: bool = True) -> SteadySteps:
        """Return the simulation by parts of a step, drives that do the same as one kind if they are to merge."""
        counts: dict[Drive, int] = {}
        for drive in self.drives:
            counts[drive] = counts.get(drive, 0) + 1
        rows = list(counts.items()) if merge else [(drive, 1) for drive in self.drives]
        kinds = [DriveKind(n, each.passes, each.own, each.push_bytes, each.pull_bytes) for each, n in rows]
        local = None if self.host is None else Passes.of(self.host)
        return SteadySteps(kinds, self.link, self.exchange, local=local, turn_seconds=self.tail_seconds)

    def every_event(self) -> EveryEvent:
        """Return the simulation of every event at every drive."""
        local = None if self.host is None else Passes.of(self.host)
        return EveryEvent(self.drives, self.link, self.exchange, local=local, turn_seconds=self.tail_seconds)

    def steps(self, count: int, merge: bool = True) -> list[float]:
        """Return the seconds of the first steps."""
        run = self.steady(merge)
        return [run.step() for _ in range(count)]
