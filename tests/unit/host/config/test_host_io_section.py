"""The job file's host I/O: what is refused, and that loads are the same wherever they are resolved."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.config.array_file import ArrayConfig, Device
from csd_emu.perfmodel.flash.flash_ceilings import flash_ceiling
from csd_emu.perfmodel.host_load import DIURNAL, HostLoad
from csd_emu.perfmodel.storage.load_source import ScheduledLoad
from csd_emu.profiles import get_profile
from csd_emu.util.config_files import parse_config
from firmware_agent.common.errors import ConfigurationError
from host.config.host_io_section import HostIoSection, decisive_profiles, resolve_loads
from host.config.job_file import JobConfig
from host.config.resolve import fit_job
from host.fleet.checkpoint import job_sha256

ARRAY = ArrayConfig.model_validate({"name": "lab", "devices": [{"profile": "newport", "count": 3}]})
FLASH = get_profile("newport").flash_parameters


def section(**content: Any) -> HostIoSection:
    return parse_config(content, HostIoSection, "j")


def resolve(*loads: dict[str, Any], mode: str = "sync", seed: int = 7) -> dict[str, tuple[ScheduledLoad, ...]]:
    return resolve_loads(section(loads=list(loads)), ARRAY.list_devices(), seed, mode)


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ({}, r"j: loads\[0\]: write one of trace, iops and queue_depth"),
        ({"iops": 5.0, "queue_depth": 3}, "write one of trace, iops and queue_depth"),
        ({"queue_depth": 3, "shape": [1, 0]}, "gaps, shape and period are those of iops"),
        ({"trace": "t.csv", "block": "8 KiB"}, "block: a trace says that itself; leave it out"),
        ({"iops": 5.0, "devices": []}, "devices: name one or more, or all"),
        ({"iops": 5.0, "begin": {"step": 5}, "end": {"step": 5}}, "end must be later than begin"),
        ({"iops": 5.0, "begin": {"seconds": 5.0}, "end": {"seconds": 4.0}}, "end must be later than begin"),
        ({"iops": 5.0, "begin": {"seconds": 5.0, "step": 4}}, "write one of seconds, step and round"),
        ({"iops": 5.0, "end": {"step": 1}}, "end: the load would never begin"),
        ({"iops": 5.0, "end": {"round": 1}}, "end: the load would never begin"),
        ({"iops": 5.0, "end": {"seconds": 0.0}}, "end: the load would never begin"),
        ({"iops": 5.0, "begin": {}}, "write one of seconds, step and round"),
        ({"iops": 5.0, "shape": [0, 0]}, "shape: one of its rates must be more than 0"),
        ({"iops": 5.0, "shape": []}, "shape: one of its rates must be more than 0"),
        ({"iops": 5.0, "block": "0.5 B"}, "block must be a whole number of bytes"),
        ({"iops": 5.0, "period": "0 s"}, "period must be 1 us or more"),
        ({"iops": 5.0, "begin": {"seconds": -1.0}}, "begin.seconds"),
        ({"iops": 0.0}, "iops"),
        ({"iops": 5.0, "read_share": 1.5}, "read_share"),
    ],
)
def test_a_load_that_cannot_be_is_refused_with_its_place(load: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        section(loads=[load])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"policy": "lifo"}, "policy"),
        ({"policy": {"engine_limit": "0 B/s"}}, "engine_limit must be 1 B/s or more"),
        ({"protect": {"p99": "0 ms"}}, "p99 must be more than 0 s"),
        ({"namespace": 0.0}, "namespace"),
        ({"on_full": "ignore"}, "on_full"),
    ],
)
def test_what_the_whole_section_cannot_say_is_refused(content: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        section(**content)


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (
            {"iops": 1e8},
            r": csd-00: .* ask for 100000000 commands a second, .* serves 961426 at most.*: lower the rate",
        ),
        ({"iops": 1e6, "read_share": 0.0}, "serves 988[0-9]{2} at most"),
        ({"iops": 5.0, "devices": ["csd-01", "csd-09"]}, "csd-09: the array has no such drive; it has csd-00, csd-01"),
        ({"iops": 5.0, "begin": {"round": 2}}, r"begin: a job of mode sync has no rounds; name a step, or seconds"),
        ({"iops": 5.0, "block": "4 GiB"}, r"csd-00: block: 4294967296 bytes do not fit into the span of 1 .* make"),
        ({"trace": "/nowhere/my.csv"}, "csd-00: cannot be read .*No such file.*; check the path"),
        ({"iops": 5.0, "span": 1e-6, "block": "64 KiB"}, "block: 65536 bytes do not fit into the span of 1e-06"),
    ],
)
def test_what_this_array_cannot_serve_is_refused_before_anything_starts(load: dict[str, Any], message: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"^host_io\.loads\[0\].*{message}" if "loads" not in message else message
    ):
        resolve(load)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("200,h,0,Read,0,4096,0\n100,h,0,Read,0,4096,0\n", "line 2: the time goes back"),
        ("fio version 2 iolog\n/dev/sdb sync 0 0\n", "it has no reads or writes"),
        ("100,h,0,Read,0,0,0\n", "line 1: offset 0, length 0"),
        (f"100,h,0,Write,{2**40},4096,0\n", "line 1: .*within the namespace's"),
    ],
)
def test_a_trace_that_is_wrong_is_refused_with_its_line(tmp_path: Path, lines: str, message: str) -> None:
    (tmp_path / "my.csv").write_text(lines)
    with pytest.raises(ConfigurationError, match=rf"host_io\.loads\[0\]: csd-00: .*my\.csv[,:] {message}"):
        resolve_loads(section(loads=[{"trace": "my.csv"}]).at(tmp_path), ARRAY.list_devices(), 0, "sync")


def test_real_drives_and_several_servers_refuse_it() -> None:
    real = Device(name="csd-00", number=0, profile="newport", engine="remote", data=None)
    with pytest.raises(
        ConfigurationError, match="host_io: csd-00: what a real drive's host reads and writes is its own"
    ):
        resolve_loads(section(), [real], 0, "sync")
    with pytest.raises(ConfigurationError, match="host_io: drives of one server serve its host"):
        fit_job(job({}))


@given(
    written=st.floats(0, 1),
    sequential=st.booleans(),
    parts=st.integers(1, 5),
    over=st.floats(0.5, 2.0).filter(lambda over: abs(over - 1) > 1e-3),
)
def test_loads_are_refused_where_their_sum_is_more_than_a_drive_in_service_can_do(
    written: float, sequential: bool, parts: int, over: float
) -> None:
    # The fixed point p = exp(-(1 - p) 31 / 25): of 32 blocks one is open, and 25 are logical.
    amplification = 1.0 if sequential else 2.77508
    iops = over / parts * flash_ceiling(FLASH, 1 - written, 1, amplification).iops
    load = {"iops": iops, "read_share": 1 - written, "pattern": "sequential" if sequential else "random"}
    pieces: list[dict[str, Any]] = [{"begin": {"step": 9}}, {"begin": {"seconds": 4.0}}, *[{}] * 3]
    if over < 1:
        assert len(resolve(*[load | piece for piece in pieces[:parts]])["csd-00"]) == parts
    else:
        with pytest.raises(ConfigurationError, match=rf"loads\[{parts - 1}\]: csd-00: .*lower"):
            resolve(*[load | piece for piece in pieces[:parts]])


def test_the_sum_is_that_of_loads_at_the_same_time_at_their_highest() -> None:
    most = {"iops": 0.6 * flash_ceiling(FLASH).iops}
    resolve(most | {"end": {"step": 5}}, most | {"begin": {"step": 5}})
    resolve(most | {"devices": ["csd-00"]}, most | {"devices": ["csd-01"]})
    bursts = {"iops": 0.3 * flash_ceiling(FLASH).iops, "shape": [1, 0]}
    for both in ([most | {"end": {"step": 6}}, most | {"begin": {"step": 5}}], [bursts, most]):
        with pytest.raises(
            ConfigurationError,
            match=r"^host_io\.loads\[0\], host_io\.loads\[1\]: csd-00: .* have loads begin and end at other",
        ):
            resolve(*both)


@given(
    seed=st.integers(0, 2**31 - 1),
    iops=st.floats(1, 1000),
    span=st.floats(0.1, 1),
    begin=st.none() | st.integers(1, 100),
    shape=st.just("diurnal") | st.lists(st.integers(1, 50), min_size=1, max_size=5),
)
def test_each_drive_has_commands_of_its_own_the_same_in_any_array(
    seed: int, iops: float, span: float, begin: int | None, shape: Any
) -> None:
    load = {"iops": iops, "span": span, "shape": shape} | ({} if begin is None else {"begin": {"step": begin}})
    found = resolve(load, load, seed=seed)
    loads = [each.load for own in found.values() for each in own]
    assert len({each.seed for each in loads if isinstance(each, HostLoad)}) == len(loads) == 6
    alone = resolve_loads(section(loads=[load]), ARRAY.list_devices()[1:2], seed, "sync")
    assert alone["csd-01"][0] == found["csd-01"][0]
    (first, _), made = found["csd-00"], loads[0]
    assert (first.begin_step, first.end_step) == (begin or 0, None)
    assert isinstance(made, HostLoad)
    assert made.span_pages == int(FLASH.namespace_pages * span)
    assert made.shape == (DIURNAL if shape == "diurnal" else tuple(shape))


def test_a_section_survives_being_written_down() -> None:
    load = {"iops": 5.0, "block": "8 KiB", "shape": "diurnal", "end": {"seconds": 4.0}}
    written = section(policy={"engine_limit": "1 MB/s"}, protect={"p99": "2 ms"}, namespace=1.2, loads=[load])
    assert parse_config(yaml.safe_load(yaml.safe_dump(written.model_dump(mode="json"))), HostIoSection, "j") == written
    assert written.namespace_pages(FLASH) == int(64 * FLASH.usable_pages_per_die * 1.2)
    assert section().namespace_pages(FLASH) == FLASH.namespace_pages


def job(host_io: dict[str, Any] | None) -> JobConfig:
    content = {"model": "digits_cnn", "data": {"source": "digits"}, "mode": "sync", "host_io": host_io}
    return parse_config(content, JobConfig, "j")


def test_checkpoints_of_jobs_without_the_key_stay_good(tmp_path: Path) -> None:
    hashes = [job_sha256(ARRAY, each, None, []) for each in (job(None), job({}), job({"namespace": 1.2}))]
    assert len(set(hashes)) == 3
    profiles = {"newport": {"cores": 4, "flash": {"read_ns": 5}}}
    assert decisive_profiles(profiles, None) == {"newport": {"cores": 4}}
    (tmp_path / "my.csv").write_text("1,h,0,Read,0,4096,0\n")
    traced = section(loads=[{"trace": "my.csv"}]).at(tmp_path)
    before = decisive_profiles(profiles, traced)
    (tmp_path / "my.csv").write_text("1,h,0,Read,0,8192,0\n")
    assert decisive_profiles(profiles, traced) != before
    assert before["newport"] == profiles["newport"]
