"""Random models, links and settings for the laws of communication schedules."""

from hypothesis import strategies as st

from csd_emu.perfmodel.overlap.layer_work import Costs, LayerCost, TensorCost
from csd_emu.perfmodel.overlap.simulated_link import LinkTrace, SharedLink
from firmware_agent.common.send_queue import TransferSettings

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
    device_bytes_per_second=st.floats(1e4, 1e7) | st.just(float("inf")),
    background_share=st.floats(0, 0.9) | st.just(0.0),
)
slice_sizes = st.integers(100, 6000)
priorities = st.builds(
    TransferSettings, st.just("priority"), st.none() | slice_sizes, st.none() | st.integers(1, 20_000)
)
sendings = st.just(TransferSettings()) | priorities
blocks = st.sampled_from([64, 1000, 100_000])


@st.composite
def traces(draw: st.DrawFn) -> LinkTrace:
    """A link that changes up to three times within the first seconds."""
    gaps = draw(st.lists(st.floats(1e-3, 0.5), max_size=3))
    starts = [sum(gaps[:count]) for count in range(len(gaps) + 1)]
    return LinkTrace(tuple(starts), tuple(draw(links) for _ in starts))
