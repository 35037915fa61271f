from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.host_only import Storage, train_on_host
from firmware_agent.common.errors import ConfigurationError

storages = st.builds(Storage, st.integers(1, 36), st.floats(1e6, 1e10), st.floats(1e6, 1e11), st.floats(0, 1e-3))
works = st.tuples(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**4))
computes = st.floats(0, 1e4).map(lambda seconds: {"forward": seconds / 3, "backward": seconds * 2 / 3})


@given(work=works, phases=computes, storage=storages)
def test_reads_hide_behind_compute_but_for_what_cannot(
    work: tuple[int, int, int], phases: dict[str, float], storage: Storage
) -> None:
    base = train_on_host(*work, phases, storage)
    assert base.bytes == work[0] * work[1]
    assert base.read_seconds * (1 + 1e-9) >= base.bytes / storage.host_bytes_per_second
    assert base.read_seconds * (1 + 1e-9) >= base.bytes / (storage.drives * storage.drive_bytes_per_second)
    assert base.seconds * (1 + 1e-9) >= max(base.compute_seconds, base.read_seconds)
    assert base.seconds <= (base.compute_seconds + base.read_seconds) * (1 + 1e-9)
    assert base.exposed_seconds == pytest.approx(base.seconds - base.compute_seconds)


@given(work=works, phases=computes, storage=storages, factor=st.floats(1, 10))
def test_more_compute_or_slower_drives_never_end_sooner(
    work: tuple[int, int, int], phases: dict[str, float], storage: Storage, factor: float
) -> None:
    base = train_on_host(*work, phases, storage).seconds
    longer = {phase: seconds * factor for phase, seconds in phases.items()}
    slower = replace(storage, drive_bytes_per_second=storage.drive_bytes_per_second / factor)
    assert train_on_host(*work, longer, storage).seconds * (1 + 1e-9) >= base
    assert train_on_host(*work, phases, slower).seconds * (1 + 1e-9) >= base


def test_two_batches_of_a_host_that_waits_and_of_one_that_does_not() -> None:
    storage = Storage(2, 50.0, 1000.0, 0.0)  # 100 B/s together
    bound_by_reads = train_on_host(20, 10, 10, {"forward": 1.0}, storage)  # 1 s to read, 0.5 s to compute a batch
    assert bound_by_reads.seconds == 1 + 1 + 0.5
    bound_by_compute = train_on_host(20, 10, 10, {"forward": 6.0}, storage)
    assert bound_by_compute.seconds == 1 + 6


@pytest.mark.parametrize("change", [{"drives": 0}, {"drive_bytes_per_second": 0.0}, {"latency_seconds": float("nan")}])
def test_storage_that_cannot_be_is_refused(change: dict[str, float]) -> None:
    storage = replace(Storage(2, 50.0, 1000.0, 0.0), **change)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"baseline: .* must be"):
        train_on_host(20, 10, 10, {"forward": 1.0}, storage)


def test_no_sample_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="samples is 0"):
        train_on_host(0, 10, 10, {}, Storage(2, 50.0, 1000.0, 0.0))
