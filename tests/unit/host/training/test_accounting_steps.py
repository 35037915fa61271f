"""Time and energy of a synchronous step: the host's own part, probes beside it, devices that are not waited for."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.config.array_file import ArrayConfig
from csd_emu.perfmodel.flash.flash_drive import FlashDrive
from csd_emu.perfmodel.host_load import HostLoad
from csd_emu.perfmodel.storage.array_storage import ArrayStorage
from csd_emu.perfmodel.storage.drive_service import DriveService
from csd_emu.perfmodel.storage.load_source import ScheduledLoad
from csd_emu.perfmodel.storage.served_drive import ServedDrive
from csd_emu.perfmodel.timeline import AGGREGATE, COMMUNICATION, READ
from csd_emu.profiles import Profile, get_profile
from csd_emu.profiles.flash_geometry import FlashParameters
from csd_emu.util.node_names import HOST
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.session_frames import Trained
from host.core.device_time import gradient_seconds, host_model, micro_batch_counts
from host.training.accounting import Accountant, DeviceReport, Lateness, StepAccount, make_accountant
from tests.support.sync import TABLE

RECORD_BYTES = 72
DRIVES = ["csd-00", "csd-01", "csd-02"]
NEWPORT, SERVER = get_profile("newport"), get_profile("xeon-4108")
MODEL = host_model(TABLE, SERVER)
ARRAY = {"name": "lab", "host": {"trains": True}, "devices": [{"profile": "newport", "count": len(DRIVES)}]}

batches = st.integers(1, 256)
works = st.tuples(batches, st.floats(0.001, 20), st.integers(0, 10**8), st.integers(0, 10**8))


def accountant() -> Accountant:
    return make_accountant(ArrayConfig.model_validate(ARRAY), {HOST: MODEL})


def drive(device: str, batch: int, forward: float, sent: int, received: int) -> DeviceReport:
    trained = Trained(1, batch, 1, 0.5, PhaseSeconds(forward, forward / 2, 0.0, forward / 9), RECORD_BYTES * batch)
    return DeviceReport(device, "counted", trained, 1, batch, sent, received, micro_batch=batch)


def server(batch: int) -> DeviceReport:
    read = RECORD_BYTES * batch
    trained = Trained(1, batch, 1, 0.5, PhaseSeconds(1.0, 1.0, 0.0, 1.0), read)
    return DeviceReport(HOST, "wall", trained, 1, batch, 0, read, micro_batch=batch)


def cores(profile: Profile, seconds: PhaseSeconds) -> float:
    """Core seconds of a gradient: forward and backward keep all cores busy, taking the gradient out one."""
    return profile.cores.value * (seconds.forward + seconds.backward) + seconds.encode


def energy(profile: Profile, elapsed: float, core_seconds: float, busy: float, read: int, link: int) -> float:
    """Joules, added up by hand."""
    power = profile.power
    watts = power.idle_watts.value + (profile.chassis_watts.value if profile.chassis_watts is not None else 0.0)
    joules = watts * elapsed + power.core_watts.value * core_seconds + power.dram_watts.value * busy
    return joules + power.flash_joules_per_byte.value * read + power.link_joules_per_byte.value * link


def total(accounted: StepAccount) -> float:
    own = [sum(part.energy_joules.values()) for part in accounted.devices]
    return math.fsum([*own, *(sum(joules.values()) for joules in accounted.energy_joules.values())])


@given(parts=st.lists(works, min_size=0, max_size=len(DRIVES)), batch=batches, host_seconds=st.floats(0, 1))
def test_the_energy_of_a_step_is_that_of_its_parts(parts: list[Any], batch: int, host_seconds: float) -> None:
    returned = [drive(name, *work) for name, work in zip(DRIVES, parts, strict=False)]
    accounted = accountant().account([*returned, server(batch)], host_seconds=host_seconds)
    elapsed = accounted.array_seconds
    want, link_bytes = 0.0, RECORD_BYTES * batch
    for part in returned:
        counted = NEWPORT.device_seconds(part.trained.seconds)
        moved = part.sent_bytes + part.received_bytes
        link_bytes += moved
        want += energy(NEWPORT, elapsed, cores(NEWPORT, counted), counted.total, part.trained.read_bytes, moved)
    for _ in DRIVES[len(parts) :]:
        want += energy(NEWPORT, elapsed, 0.0, 0.0, 0, 0)
    own = gradient_seconds(MODEL, {batch: 1})
    want += energy(SERVER, elapsed, cores(SERVER, own) + host_seconds, own.total + host_seconds, 0, link_bytes)
    assert total(accounted) == pytest.approx(want, rel=1e-9)
    assert accounted.devices[-1].energy_joules == {}  # what the server draws is not told apart


@given(batch=batches, micro=st.integers(1, 256))
def test_the_hosts_seconds_are_modelled_whatever_its_process_took(batch: int, micro: int) -> None:
    part = replace(server(batch), micro_batch=micro)
    (accounted,) = accountant().account([part]).devices
    assert accounted.clock == "modelled"
    expected = gradient_seconds(MODEL, micro_batch_counts(batch, micro))
    assert accounted.device_seconds == expected
    assert accounted.device_seconds.update == 0
    assert accounted.stopwatch_seconds == part.trained.seconds
    assert (accounted.receive_seconds, accounted.send_seconds) == (0.0, 0.0)
    assert (accounted.sent_bytes, accounted.received_bytes) == (0, RECORD_BYTES * batch)


@given(parts=st.lists(works, min_size=1, max_size=2), probe=works, host_seconds=st.floats(0, 1))
def test_a_probe_takes_no_time_of_the_arrays_and_draws_power_no_longer_than_the_step(
    parts: list[Any], probe: Any, host_seconds: float
) -> None:
    returned = [drive(name, *work) for name, work in zip(DRIVES, parts, strict=False)]
    beside = [drive(DRIVES[2], *probe)]
    alone = accountant().account(returned, host_seconds=host_seconds)
    watched = accountant().account(returned, host_seconds=host_seconds, beside=beside)
    assert watched.array_seconds == alone.array_seconds
    assert watched.finish_seconds == alone.finish_seconds
    assert [part.straggler for part in watched.devices] == [False] * len(parts) + [True]
    assert watched.devices[-1].device_seconds == NEWPORT.device_seconds(beside[0].trained.seconds)
    own = [span for span in watched.spans if span.device == DRIVES[2]]
    assert all(span.end_seconds <= watched.array_seconds * (1 + 1e-12) for span in own)
    busy = math.fsum(span.seconds for span in own if span.phase not in {READ, *COMMUNICATION})
    compute = NEWPORT.cores.value * NEWPORT.power.core_watts.value + NEWPORT.power.dram_watts.value
    joules = watched.devices[-1].energy_joules
    assert joules["idle"] == pytest.approx(NEWPORT.power.idle_watts.value * watched.array_seconds)
    assert joules["cpu"] + joules["dram"] <= compute * busy * (1 + 1e-9) + 1e-12
    # Nobody else's energy changes, but for the bytes that cross the host's end of the link.
    moved = beside[0].sent_bytes + beside[0].received_bytes
    extra = SERVER.power.link_joules_per_byte.value * moved
    idle = sum(alone.energy_joules[DRIVES[2]].values())
    assert total(watched) - sum(joules.values()) == pytest.approx(total(alone) - idle + extra, rel=1e-9)
    assert DRIVES[2] not in watched.energy_joules


@given(
    parts=st.lists(works, min_size=2, max_size=len(DRIVES)), share=st.floats(0.05, 0.95), host_seconds=st.floats(0, 1)
)
def test_what_is_late_is_not_waited_for_and_the_host_goes_on_from_there(
    parts: list[Any], share: float, host_seconds: float
) -> None:
    returned = [drive(name, *work) for name, work in zip(DRIVES, parts, strict=False)]
    whole = accountant().account(returned)
    deadline_seconds = share * whole.array_seconds
    accounted = accountant().account(returned, Lateness(deadline_seconds), host_seconds)
    late = {name for name, seconds in whole.finish_seconds.items() if seconds > deadline_seconds}
    assert {part.device for part in accounted.devices if part.straggler} == late != set()
    assert accounted.array_seconds == pytest.approx(deadline_seconds + host_seconds)
    for span in accounted.spans:
        begins_late = span.phase == AGGREGATE
        assert span.end_seconds <= (accounted.array_seconds if begins_late else deadline_seconds) * (1 + 1e-9)
    # What the tuner sees of it is how long it really computes.
    assert [part.device_seconds for part in accounted.devices] == [part.device_seconds for part in whole.devices]


def test_a_step_that_leaves_late_devices_waits_for_reads_of_the_others() -> None:
    flash = FlashParameters(channels=2, dies_per_channel=1, blocks_per_plane=20, over_provisioning=0.4)
    load = HostLoad(4096, flash.namespace_pages, iops=5000.0)
    served = ServedDrive(FlashDrive(flash), [ScheduledLoad(load)], 1e9)
    storage = ArrayStorage({"csd-00": served})
    service = DriveService(storage, {"csd-00": NEWPORT}, SERVER)
    books = make_accountant(ArrayConfig.model_validate(ARRAY), {HOST: MODEL}, service=service)
    returned = [drive("csd-00", 20_000, 0.01, 1000, 1000), drive("csd-01", 2, 9.0, 1000, 1000)]
    capped = {"csd-00": books.device_seconds(returned[0]), "csd-01": PhaseSeconds(0.001)}
    deadline = books.predict_seconds(returned, capped)
    books.begin_step(1)
    accounted = books.account(returned, Lateness(deadline, ["csd-01"]))
    assert accounted.waits["csd-00"] > 0
    assert accounted.array_seconds == accounted.finish_seconds["csd-00"] > deadline
    assert accounted.finish_seconds["csd-01"] > accounted.array_seconds


def test_the_host_that_trains_alone_composes_a_step() -> None:
    accounted = accountant().account([server(64)], host_seconds=0.5)
    own = gradient_seconds(MODEL, {64: 1}).total
    assert accounted.array_seconds == pytest.approx(own + 0.5)
    assert set(accounted.energy_joules) == {*DRIVES, HOST}
