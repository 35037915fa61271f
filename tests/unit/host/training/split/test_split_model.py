"""What a cut spares and costs, and steps of a model that is cut on the timeline."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.timeline import TAIL, Activity, Crossed, Link, compose, compose_cut
from csd_emu.profiles import get_profile
from csd_emu.profiles.profile import End
from csd_emu.util.node_names import HOST
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.shipped_code import ShippedCode
from host.core.datasets import load_dataset
from host.core.evaluation import Evaluator
from host.policies.batching.client_layers import WHOLE, Front, FrontModel, front_models
from host.training.split.split_model import SplitModelInfo, place_model

LINK = Link(1e8, 1e-4)


@pytest.fixture(scope="module")
def placed() -> SplitModelInfo:
    return place_model(Evaluator(ShippedCode("digits_cnn"), load_dataset("digits", 0), 0), "6", "float32")


def activity(device: str, receive: int = 4000, send: int = 4000, read: int = 64, scale: float = 1.0) -> Activity:
    phases = {"forward": 0.01 * scale, "backward": 0.02 * scale, "encode": 0.001}
    return Activity(device, receive, read, 1, phases, send, 1e9, 1e-5, 1e9, 1e-5)


def test_what_is_moved_is_counted(placed: SplitModelInfo) -> None:
    assert placed.layer == "6"
    assert placed.moved == ("6", "8")
    assert placed.moved_bytes == 4 * (512 * 64 + 64 + 64 * 10 + 10)
    assert placed.kept_bytes == 4 * (9 * 16 + 16 + 9 * 16 * 32 + 32)
    double = place_model(Evaluator(ShippedCode("digits_cnn"), load_dataset("digits", 0), 0), "6", "float64")
    assert (double.moved_bytes, double.kept_bytes) == (2 * placed.moved_bytes, 2 * placed.kept_bytes)
    assert double.host_bytes(3) == 2 * placed.host_bytes(3)
    assert double.front.encode_share == placed.front.encode_share
    assert double.front.spared_bytes == placed.front.spared_bytes  # what tables are of, they are of float32
    assert placed.point.record_bytes == 4 * 512
    assert 0.8 < placed.front.forward_share < 1
    assert placed.front.encode_share == placed.kept_bytes / (placed.kept_bytes + placed.moved_bytes)


def test_a_host_without_room_is_told_before_anything_starts(
    placed: SplitModelInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = SimpleNamespace(available=placed.host_bytes(96), total=-(-placed.host_bytes(96) * 4 // 3))
    monkeypatch.setattr("psutil.virtual_memory", lambda: machine)
    host = get_profile("xeon-4108")
    placed.check_host(96, host)
    assert placed.most_records(host) == 96
    machine.available -= 1
    with pytest.raises(
        ConfigurationError, match=r"from '6' on needs some .* for 96 records a step, and this machine has"
    ):
        placed.check_host(96, host)
    machine.available = 1 << 40
    small = replace(host, dram_bytes=replace(host.dram_bytes, value=1000))
    with pytest.raises(
        ConfigurationError, match=r"and a xeon-4108 has 1\.0 kB; cut later, give drives smaller batches"
    ):
        placed.check_host(96, small)


class Steady:
    """A second and two for each record."""

    encode_seconds = 0.5

    def step_seconds(self, batch_size: int) -> PhaseSeconds:
        return PhaseSeconds(1.0 * batch_size, 2.0 * batch_size, 3.0, 0.5)

    def covers(self, batch_size: int) -> bool:
        return batch_size < 5

    def at(self, _: End) -> Steady:
        return self


def test_a_front_takes_its_share_of_the_whole_models_seconds() -> None:
    front = Front(0.5, 0.25, 0.1, 100, 7)
    model = front_models({"csd-00": Steady()}, front)["csd-00"]
    assert isinstance(model, FrontModel)
    assert model.step_seconds(4) == PhaseSeconds(2.0, 2.0, 3.0, 0.05)
    assert model.encode_seconds == 0.05
    assert [model.covers(size) for size in (4, 5)] == [True, False]
    assert front.spared(3) == 121
    assert isinstance(front_models({"csd-00": Steady()}, WHOLE)["csd-00"], Steady)


def test_the_hosts_part_takes_the_rest_of_its_table_or_of_the_drives_arithmetic(placed: SplitModelInfo) -> None:
    half = replace(placed, front=Front(0.5, 0.25, 0.1))
    assert half.tail_seconds(4, [], Steady(), None) == pytest.approx(4 * 0.5 + 8 * 0.75)
    fronts = [PhaseSeconds(1.0, 2.0), PhaseSeconds(3.0, 4.0)]
    assert half.tail_seconds(4, fronts, None, 10.0) == pytest.approx((4.0 + 6.0 * 3) / 10)


sizes = st.integers(0, 10**6)


@given(ups=st.lists(sizes, min_size=1, max_size=4), down=sizes, tail=st.floats(0, 10), own=st.integers(0, 1))
def test_a_step_with_a_cut_is_the_forward_passes_the_hosts_part_and_the_rest(
    ups: list[int], down: int, tail: float, own: int
) -> None:
    parts = [activity(f"csd-{n:02}", 4000 + down, 4000 + up, scale=1 + n) for n, up in enumerate(ups)]
    crossed = Crossed({f"csd-{n:02}": up for n, up in enumerate(ups)}, {p.device: down for p in parts}, tail)
    if own:
        parts.append(replace(activity(HOST, 0, 0), device=HOST))
    composed = compose_cut(parts, LINK, crossed, 0.25)
    # No part of it is lost, and nothing begins before what it needs.
    for part in parts:
        spans = [span for span in composed.spans if span.device == part.device]
        for phase, seconds in part.phases.items():
            assert sum(s.seconds for s in spans if s.phase == phase) == pytest.approx(seconds, abs=1e-9)
        assert sum(s.bytes for s in spans if s.phase == "receive") == part.receive_bytes
        assert sum(s.bytes for s in spans if s.phase == "send") == part.send_bytes
    turn = [span for span in composed.spans if span.phase == TAIL]
    forward = max(span.end_seconds for span in composed.spans if span.phase == "forward")
    backward = min(span.start_seconds for span in composed.spans if span.phase == "backward")
    if tail:
        assert turn[0].seconds == pytest.approx(tail)
        assert forward <= turn[0].start_seconds + 1e-9
        assert turn[0].end_seconds <= backward + 1e-9
    assert composed.seconds >= tail + 0.25 + max(part.compute_seconds for part in parts) - 1e-9
    assert math.isfinite(composed.seconds)
    slower = compose_cut(parts, LINK, replace(crossed, tail_seconds=tail + 1), 0.25)
    assert slower.seconds == pytest.approx(composed.seconds + 1)
    stepped = compose_cut(parts, LINK, replace(crossed, step_seconds=2.0), 0.25)
    assert stepped.seconds == pytest.approx(composed.seconds + 2)


def test_a_step_across_which_nothing_goes_is_the_plain_one() -> None:
    parts = [activity("csd-00"), activity("csd-01")]
    crossed = Crossed({}, {}, 0.0)
    assert compose_cut(parts, LINK, crossed).seconds == pytest.approx(compose(parts, LINK).seconds, rel=1e-9)
