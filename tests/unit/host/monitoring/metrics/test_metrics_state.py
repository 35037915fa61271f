import dataclasses
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.records import DeviceRound, EventKind, EventRecord, RoundRecord
from host.monitoring.metrics.metrics_state import STATES, MetricsState
from host.monitoring.run_listener import RunStart
from tests.support.metrics import DEVICES, Samples, begun, defined, devices_of, exposed, facts, scraped, starting
from tests.support.records import device_round, round_record

seconds = st.floats(0, 1e4)
counts = st.integers(0, 10**9)


@st.composite
def parts(draw: st.DrawFn, device: str) -> DeviceRound:
    clock = draw(st.sampled_from(["counted", "wall"]))
    return device_round(
        device,
        draw(st.integers(1, 10**6)),
        PhaseSeconds(forward=draw(seconds), backward=draw(seconds), update=draw(seconds), encode=draw(seconds)),
        clock=clock,
        steps=draw(st.integers(0, 1000)),
        read_seconds=draw(seconds),
        receive_seconds=draw(seconds),
        send_seconds=draw(seconds),
        flash_read_bytes=draw(counts),
        sent_bytes=draw(counts),
        received_bytes=draw(counts),
        energy_joules={"idle": draw(seconds), "cpu": draw(seconds)},
        straggler=draw(st.booleans()),
    )


@st.composite
def rounds(draw: st.DrawFn) -> list[RoundRecord]:
    """Rounds in which any drives take part; those that do not are left idle or lost, and idle power is charged."""
    records = []
    for number in range(1, draw(st.integers(0, 5)) + 1):
        roles = {device: draw(st.sampled_from(["trains", "idle", "lost"])) for device in DEVICES}
        done = [draw(parts(device)) for device, role in roles.items() if role == "trains"]
        others = {device: {"idle": draw(seconds)} for device, role in roles.items() if role != "trains"}
        records.append(
            round_record(
                done,
                round=number,
                clock="+".join(sorted({part.clock for part in done})) or "counted",
                array_seconds=draw(seconds),
                wall_seconds=draw(seconds),
                idle=[device for device, role in roles.items() if role == "idle"],
                lost=[device for device, role in roles.items() if role == "lost"],
                energy_joules={"host": {"idle": draw(seconds), "chassis": draw(seconds)}, **others},
            )
        )
    return records


# Sample name -> what one device's part in a round adds to it, by labels in the order of their names.
COUNTED_OF_PART: dict[str, Any] = {
    "csd_nvme_read_bytes_total": lambda p: {(p.device,): p.flash_read_bytes},
    "csd_nvme_io_seconds_total": lambda p: {(p.clock, p.device, "read"): p.read_seconds},
    "csd_network_receive_bytes_total": lambda p: {(p.device,): p.sent_bytes},
    "csd_network_transmit_bytes_total": lambda p: {(p.device,): p.received_bytes},
    "csd_host_link_bytes_total": lambda p: {
        (p.device, "to_device"): p.sent_bytes,
        (p.device, "from_device"): p.received_bytes,
    },
    "csd_link_seconds_total": lambda p: {
        (p.clock, p.device, "to_device"): p.receive_seconds,
        (p.clock, p.device, "from_device"): p.send_seconds,
    },
}
# The same of a part that came in time.
COUNTED_IN_TIME: dict[str, Any] = {
    "csd_train_samples_total": lambda p: {(p.device,): p.samples},
    "csd_train_steps_total": lambda p: {(p.device,): p.steps},
    "csd_compute_seconds_total": lambda p: {
        (p.clock, p.device, phase): getattr(p.device_seconds, phase)
        for phase in ("forward", "backward", "update", "encode")
    },
    "csd_train_step_duration_seconds_sum": lambda p: {
        (p.clock, p.device, phase): getattr(p.device_seconds, phase)
        for phase in ("forward", "backward", "update")
        if p.steps
    },
    "csd_train_step_duration_seconds_count": lambda p: {
        (p.clock, p.device, phase): p.steps for phase in ("forward", "backward", "update") if p.steps
    },
}


def joules_of(record: RoundRecord) -> Samples:
    nodes = record.energy_joules | {part.device: part.energy_joules for part in record.devices}
    return {(record.clock, c, node, "model"): value for node, parts in nodes.items() for c, value in parts.items()}


COUNTED_OF_ROUND: dict[str, Any] = {
    "csd_energy_joules_total": joules_of,
    "csd_device_seconds_total": lambda r: {(r.clock, node): r.array_seconds for node in (*DEVICES, "host")},
    "csd_round_duration_seconds_sum": lambda r: {(r.clock, "federated"): r.array_seconds},
    "csd_round_duration_seconds_count": lambda r: {(r.clock, "federated"): 1},
    "csd_round_stragglers_total": lambda r: {("federated",): sum(part.straggler for part in r.devices)},
    "csd_wall_seconds_total": lambda r: {("wall",): r.wall_seconds},
}


def total(samples: list[Samples]) -> Samples:
    sums: Samples = {}
    for each in samples:
        for labels, value in each.items():
            sums[labels] = sums.get(labels, 0.0) + value
    return sums


@pytest.mark.slow
@given(records=rounds())
def test_counters_are_the_sums_of_the_records(records: list[RoundRecord]) -> None:
    state = begun()
    for record in records:
        state.add_round(record)
    metrics = scraped(state)
    done = [part for record in records for part in record.devices]
    expected = {name: total([of(part) for part in done]) for name, of in COUNTED_OF_PART.items()}
    in_time = [part for part in done if not part.straggler]
    expected |= {name: total([of(part) for part in in_time]) for name, of in COUNTED_IN_TIME.items()}
    expected |= {name: total([of(record) for record in records]) for name, of in COUNTED_OF_ROUND.items()}
    for name, sums in expected.items():
        seen = metrics.get(name, {})
        assert {labels: seen[labels] for labels in sums} == pytest.approx(sums, rel=1e-9), name
        assert all(value == 0 for labels, value in seen.items() if labels not in sums), name


def test_a_part_that_only_exchanged_weights_has_no_step_durations() -> None:
    state = begun()
    state.add_round(round_record([device_round("csd-00", 0, PhaseSeconds(encode=0.5), steps=0)]))
    metrics = scraped(state)
    assert set(metrics["csd_train_step_duration_seconds_count"].values()) == {0}
    assert metrics["csd_compute_seconds_total"]["counted", "csd-00", "encode"] == 0.5


def test_a_drive_never_computes_for_longer_than_the_rounds_took() -> None:
    """A drive that missed the deadline went on behind the round's end: that work was thrown away."""
    state = begun()
    late = device_round("csd-00", 10, PhaseSeconds(forward=9.0), straggler=True, energy_joules={"idle": 1.0})
    state.add_round(round_record([late], array_seconds=2.0))
    metrics = scraped(state)
    assert metrics["csd_device_seconds_total"]["counted", "csd-00"] == 2.0
    assert metrics["csd_compute_seconds_total"]["counted", "csd-00", "forward"] == 0
    assert metrics["csd_train_samples_total"]["csd-00",] == 0
    assert metrics["csd_network_receive_bytes_total"]["csd-00",] == 100
    assert metrics["csd_energy_joules_total"]["counted", "idle", "csd-00", "model"] == 1.0


def test_a_resumed_run_goes_on_from_its_rounds() -> None:
    """Its rounds are played to the state before there is any drive."""
    state, done = defined(), [device_round(device, 10, PhaseSeconds(forward=1.0)) for device in DEVICES]
    for number in (1, 2, 3):
        state.add_round(round_record(done, round=number))
    for device in DEVICES:
        state.add_event(EventRecord(device, EventKind.JOINED))
    state.begin(starting())
    metrics = scraped(state)
    assert metrics["csd_round"] == {("federated",): 3}
    assert metrics["csd_train_samples_total"]["csd-00",] == 30
    assert metrics["csd_round_duration_seconds_count"]["counted", "federated"] == 3


@pytest.mark.slow
@given(records=rounds())
def test_gauges_are_those_of_the_last_round(records: list[RoundRecord]) -> None:
    state = begun()
    for record in records:
        state.add_round(record)
    metrics = scraped(state)
    assert metrics["csd_round"] == {("federated",): len(records)}
    if not records:
        assert "csd_accuracy_ratio" not in metrics
        assert "csd_power_watts" not in metrics
        return
    last = records[-1]
    assert metrics["csd_accuracy_ratio"] == {(): last.accuracy}
    assert metrics["csd_loss"] == {("test",): last.test_loss, ("train",): last.train_loss}
    assert metrics["csd_round_participants"] == {("federated",): sum(not part.straggler for part in last.devices)}
    watts = {labels: value / last.array_seconds for labels, value in joules_of(last).items() if last.array_seconds}
    assert metrics.get("csd_power_watts", {}) == pytest.approx(watts)


def test_all_counters_begin_at_zero_so_that_a_rate_misses_no_first_round() -> None:
    state = begun()
    metrics = scraped(state)
    state.add_round(round_record([part("csd-00"), part("csd-01")], energy_joules=charged("csd-02", "host")))
    after = scraped(state)
    for name in (*COUNTED_OF_PART, *COUNTED_OF_ROUND, "csd_rejoins_total", "csd_errors_total"):
        assert set(metrics[name].values()) == {0.0}, name
        assert metrics[name].keys() == after[name].keys(), name


def part(device: str, **fields: Any) -> DeviceRound:
    joules = dict.fromkeys(("idle", "cpu", "dram", "flash", "link"), 1.0)
    return device_round(device, 10, PhaseSeconds(forward=1.0), energy_joules=joules, **fields)


def charged(*nodes: str) -> dict[str, dict[str, float]]:
    return {node: {"idle": 2.0} for node in nodes}


LASTING = {"csd_device_up", "csd_device_state", "csd_rejoins_total", "csd_errors_total"}
HARDWARE = {"csd_energy_joules_total", "csd_device_seconds_total", "csd_power_watts"}


def lose(state: MetricsState, device: str) -> None:
    state.add_event(EventRecord(device, EventKind.LOST))
    state.add_event(EventRecord(device, EventKind.LEFT))


def names_of(state: MetricsState, device: str) -> set[str]:
    return {name for name, devices in devices_of(exposed(state)).items() if device in devices}


def test_series_of_a_drive_that_stays_away_vanish_and_come_back_with_their_counts() -> None:
    state = begun()
    state.add_round(round_record([part(device) for device in DEVICES], energy_joules=charged("host")))
    served = names_of(state, "csd-01")
    assert served == names_of(state, "csd-00")
    lose(state, "csd-01")
    left = [part("csd-00"), part("csd-02")]
    state.add_round(round_record(left, round=2, energy_joules=charged("host"), lost=["csd-01"]))
    assert names_of(state, "csd-01") == served - {"csd_power_watts"}
    state.add_round(round_record(left, round=3, energy_joules=charged("host"), lost=["csd-01"]))
    assert names_of(state, "csd-01") == LASTING
    assert scraped(state)["csd_errors_total"]["csd-01", "lost"] == 1
    assert names_of(state, "csd-00") == served

    state.add_event(EventRecord("csd-01", EventKind.REJOINED))
    metrics = scraped(state)
    assert metrics["csd_train_samples_total"]["csd-01",] == 10
    assert metrics["csd_rejoins_total"]["csd-01",] == 1
    state.add_round(round_record([part(device) for device in DEVICES], round=4, energy_joules=charged("host")))
    assert scraped(state)["csd_train_samples_total"]["csd-01",] == 20
    assert names_of(state, "csd-01") == served


def test_energy_of_a_drive_that_is_gone_is_served_while_it_is_charged() -> None:
    state = begun()
    lose(state, "csd-01")
    for number in (1, 2, 3):
        state.add_round(round_record([part("csd-00")], round=number, energy_joules=charged("csd-01", "csd-02", "host")))
    assert names_of(state, "csd-01") == LASTING | HARDWARE
    state.add_round(round_record([part("csd-00")], round=4, energy_joules=charged("csd-02", "host")))
    assert names_of(state, "csd-01") == LASTING


def test_a_drive_that_is_back_before_the_next_round_ends_never_vanishes() -> None:
    state = begun()
    for number in range(1, 6):
        lose(state, "csd-01")
        state.add_round(round_record([part("csd-00")], round=number, energy_joules=charged("host")))
        assert "csd_train_samples_total" in names_of(state, "csd-01")
        state.add_event(EventRecord("csd-01", EventKind.REJOINED))
        state.add_round(round_record([part("csd-00")], round=number, energy_joules=charged("host")))


def test_a_drive_that_never_came_has_no_series_but_its_state() -> None:
    state = defined()
    state.add_event(EventRecord("csd-02", EventKind.LOST, "before the run began"))
    for device in DEVICES[:2]:
        state.add_event(EventRecord(device, EventKind.JOINED))
    state.begin(starting(DEVICES[:2]))
    assert names_of(state, "csd-02") == LASTING
    assert state_of(state, "csd-02") == "lost"


def state_of(state: MetricsState, device: str) -> str:
    states = scraped(state)["csd_device_state"]
    (now,) = [name for name in STATES if states[device, name]]
    assert {name for _, name in states} == set(STATES)
    return now


def test_a_drives_states_in_the_order_of_its_life() -> None:
    state = defined()
    assert state_of(state, "csd-00") == "defined"
    state.start_booting()
    assert state_of(state, "csd-00") == "booting"
    state.add_event(EventRecord("csd-00", EventKind.JOINED))
    assert state_of(state, "csd-00") == "ready"
    assert scraped(state)["csd_device_up"] == {("csd-00",): 1, ("csd-01",): 0, ("csd-02",): 0}
    state.begin(starting(DEVICES[:1]))
    assert state_of(state, "csd-00") == "training"
    state.add_round(round_record([], idle=["csd-00"]))
    assert state_of(state, "csd-00") == "ready"
    state.add_round(round_record([part("csd-00")]))
    assert state_of(state, "csd-00") == "training"
    state.add_event(EventRecord("csd-00", EventKind.LEFT))
    assert state_of(state, "csd-00") == "lost"
    assert scraped(state)["csd_device_up"]["csd-00",] == 0


def test_a_loss_that_is_told_after_the_drive_dialled_again_does_not_take_it_down() -> None:
    state = begun()
    state.add_event(EventRecord("csd-00", EventKind.REJOINED))
    state.add_event(EventRecord("csd-00", EventKind.LOST))
    assert state_of(state, "csd-00") == "training"
    assert scraped(state)["csd_errors_total"]["csd-00", "lost"] == 1


def test_switching_the_drives_off_after_the_run_is_no_loss() -> None:
    state = begun()
    state.end()
    lose(state, "csd-00")
    assert state_of(state, "csd-00") == "ready"
    assert scraped(state)["csd_errors_total"]["csd-00", "lost"] == 0


def test_when_training_is_done_a_drive_that_leaves_is_still_seen_and_vanishes_at_once() -> None:
    state = begun()
    state.add_round(round_record([part(device) for device in DEVICES]))
    state.end(stays=True)
    assert {state_of(state, device) for device in DEVICES} == {"ready"}
    before = names_of(state, DEVICES[1])
    state.add_event(EventRecord(DEVICES[1], EventKind.LEFT))
    assert state_of(state, DEVICES[1]) == "lost"
    assert scraped(state)["csd_device_up"][DEVICES[1],] == 0
    assert "csd_train_samples_total" not in names_of(state, DEVICES[1])
    state.add_event(EventRecord(DEVICES[1], EventKind.REJOINED))
    assert state_of(state, DEVICES[1]) == "ready"
    assert names_of(state, DEVICES[1]) == before
    state.end()
    state.add_event(EventRecord(DEVICES[1], EventKind.LEFT))
    assert state_of(state, DEVICES[1]) == "ready"


def test_who_is_not_of_the_array_makes_one_series_however_many_come() -> None:
    state = begun()
    for number in range(50):
        state.add_event(EventRecord(f"stranger-{number}", EventKind.REFUSED, "not of this array"))
    errors = scraped(state)["csd_errors_total"]
    assert errors["unknown", "refused"] == 50
    assert {device for device, _ in errors} == {*DEVICES, "unknown"}


def test_an_agent_of_another_version_replaces_what_is_known_of_the_drive() -> None:
    state, known = defined(), [facts("csd-00")]
    state.begin(RunStart("counted", list_devices=lambda: known))
    known[0] = dataclasses.replace(known[0], hello={**known[0].hello, "agent": "0.2.0"})
    state.add_round(round_record([]))
    state.add_event(EventRecord("csd-00", EventKind.JOINED))
    versions = [labels[0] for labels in scraped(state)["csd_device_info"] if "csd-00" in labels]
    assert versions == ["0.2.0"]


def test_memory_is_there_when_it_is_known() -> None:
    state = begun()
    state.add_round(round_record([part("csd-00"), part("csd-01", peak_memory_bytes=1 << 28)]))
    assert scraped(state)["csd_memory_used_bytes"] == {("csd-01",): float(1 << 28)}


def test_a_scrape_sees_a_round_whole_or_not_at_all() -> None:
    """While rounds come in one thread, every scrape's counters are of one and the same round."""
    state, ended = begun(), threading.Event()

    def play() -> None:
        for number in range(1, 300):
            done = [part(device, sent_bytes=7) for device in DEVICES]
            state.add_round(round_record(done, round=number, array_seconds=3.0, energy_joules=charged("host")))
        ended.set()

    thread = threading.Thread(target=play)
    thread.start()
    seen: set[Any] = set()
    while not ended.is_set() or not seen:
        metrics = scraped(state)
        (number,) = metrics["csd_round"].values()
        seen.add(number)
        assert set(metrics["csd_train_samples_total"].values()) == {10 * number}
        assert set(metrics["csd_network_receive_bytes_total"].values()) == {7 * number}
        assert set(metrics["csd_device_seconds_total"].values()) == {3 * number}
        assert set(metrics["csd_round_duration_seconds_sum"].values()) == {3 * number}
    thread.join()


def test_the_number_of_series_grows_with_drives_alone() -> None:
    def series(devices: int) -> int:
        state = begun([f"csd-{number:02d}" for number in range(devices)])
        for number in range(1, 20):
            done = [part(f"csd-{n:02d}", peak_memory_bytes=number) for n in range(devices)]
            state.add_round(round_record(done, round=number, energy_joules=charged("host")))
        return sum(len(samples) for samples in scraped(state).values())

    few, more, most = (series(devices) for devices in (1, 2, 3))
    assert more - few == most - more
    assert more - few < 120
