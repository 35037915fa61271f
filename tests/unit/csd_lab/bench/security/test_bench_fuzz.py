"""The fuzzer: it repeats itself, finds what is planted, and holds what it found."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from csd_lab.bench import run_bench
from csd_lab.bench.security import bench_fuzz as fuzz
from csd_lab.bench.security.fuzz_files import file_targets
from csd_lab.bench.security.fuzz_loop import FuzzTarget, fuzz_target, run_case
from csd_lab.bench.security.fuzz_mutation import MOST_BYTES, Mutator, encoder, example_of
from csd_lab.bench.security.fuzz_wire import wire_targets
from firmware_agent.common import wire
from firmware_agent.common.errors import ConfigurationError, CsdError, ProtocolError
from host.config.server_group import load_server_group
from host.core.records import RoundRecord
from host.core.states.training_state import unpack_state
from host.core.summary import Summary
from host.training.multi_server.store.store_client import read_request
from host.training.multi_server.worker.worker_frames import from_host, from_worker


def planted(content: bytes) -> None:
    """Fail in two ways, and refuse the rest."""
    value = msgspec.json.decode(content)
    if isinstance(value, dict) and value.get("a") is None:
        raise KeyError("a")
    if not isinstance(value, dict):
        raise ConfigurationError("no mapping")


TARGET = FuzzTarget("planted", "json", [{"a": 1, "b": [1, 2]}], planted)


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["json", "lines", "msgpack", "yaml", "bytes"])
def test_cases_are_decided_by_the_seed_and_bounded(codec: str) -> None:
    seeds: list[Any] = [b"some bytes" * 9] if codec == "bytes" else [[{"a": 1, "b": ["x", 2.5, None]}]]

    def cases(seed: int) -> list[bytes]:
        mutator = Mutator(random.Random(seed))
        return [mutator.case(codec, seeds, [b"abc", b"x" * 100_000]) for _ in range(200)]

    assert cases(1) == cases(1) != cases(2)
    assert max(map(len, cases(1))) <= MOST_BYTES
    assert len(set(cases(1))) > 100


@pytest.mark.slow
def test_what_is_planted_is_found_once_of_each_kind_and_can_be_had_again() -> None:
    tally = fuzz_target(TARGET, 2000, seed=3)
    assert tally.cases == 2000
    assert tally.refused
    kinds = {crash.what.partition(" ")[0] for crash in tally.crashes}
    assert "KeyError" in kinds
    assert len(kinds) == len(tally.crashes)
    assert [crash.case for crash in fuzz_target(TARGET, 2000, seed=3).crashes] == [each.case for each in tally.crashes]
    for crash in tally.crashes:
        _, what, _ = run_case(planted, crash.content)
        assert what == crash.what


def test_what_never_ends_is_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("csd_lab.bench.security.fuzz_loop.HANG_SECONDS", 0.05)

    def endless(_: bytes) -> None:
        while True:
            pass

    assert run_case(endless, b"")[1].startswith("Hang")


def test_an_example_is_one(subtests: pytest.Subtests) -> None:
    for kind in [*wire.AnyFrame.__args__, RoundRecord, Summary]:
        with subtests.test(kind=kind):
            assert isinstance(msgspec.msgpack.decode(msgspec.msgpack.encode(example_of(kind)), type=kind), kind)


@pytest.mark.slow
def test_every_target_reads_what_is_valid_and_refuses_the_rest(tmp_path: Path) -> None:
    accepted = 0
    for target in [*wire_targets(tmp_path), *file_targets(tmp_path)]:
        for value in target.seeds:
            try:
                target.call(encoder(target.codec)(value))
                accepted += 1
            except CsdError:
                pass  # sessions end at the end of a case
        assert not fuzz_target(target, 12, seed=5).crashes, target.name
    assert accepted > 60


@pytest.mark.slow
def test_a_saved_case_is_replayed_and_options_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "wire_targets", lambda _: [TARGET])
    monkeypatch.setattr(fuzz, "file_targets", lambda _: [])
    monkeypatch.setattr("platform.platform", lambda: "a system")  # it asks a process
    paths = Paths(tmp_path, tmp_path, tmp_path)
    found = run_bench("fuzz", paths, Silent(), 3, cases=2000)
    assert found.figures["crashes"] == len(list((tmp_path / "fuzz").iterdir())) > 0
    for path in (tmp_path / "fuzz").iterdir():
        assert run_bench("fuzz", paths, Silent(), 0, replay=path).figures["crashes"] == 1
    with pytest.raises(ConfigurationError, match="no saved case"):
        run_bench("fuzz", paths, Silent(), 0, replay=tmp_path / "other-0-0")
    with pytest.raises(ConfigurationError, match="bench deploy has no option --cases"):
        run_bench("deploy", paths, Silent(), 0, cases=5)


class TestWhatItFound:
    @pytest.mark.parametrize("read", [from_host, from_worker, read_request, unpack_state])
    def test_a_text_that_is_no_utf8_is_refused(self, read: Any) -> None:
        kind = {"type": "Turn", "run": "x"}
        content = msgspec.msgpack.encode(kind).replace(b"\xa4Turn", b"\xa4\xff\xfe\xfd\xfc")
        for each in (content, b"\x81\xa4type\xa4\xb1\xff\xff\xff", b"\xff" * 20):
            with pytest.raises(CsdError):
                read(each)

    def test_a_hall_without_digits_or_no_text_is_refused(self, tmp_path: Path) -> None:
        array = {"name": "lab", "engine": "native", "devices": [{"profile": "newport", "count": 1}]}
        servers = {"name": "hall", "servers": [{"name": "a", "array": "a.yaml"}], "network": "127.0.0.0/8"}
        path = tmp_path / "servers.json"
        for digits in ({}, {"csd": 10**9}):
            whole = array | {"digits": digits}
            server_group = {"server": "a", "config": servers, "own": array, "whole": whole, "arrays": {}}
            path.write_text(json.dumps(server_group))
            with pytest.raises(ConfigurationError, match="digits"):
                load_server_group(path)
        for content in (b"\xff", b'{"server": 1, "config": 1, "own": 1, "whole": 1, "arrays": 1}', b"[" * 5000):
            path.write_bytes(content)
            with pytest.raises(ConfigurationError):
                load_server_group(path)

    def test_a_frame_is_refused_with_its_own_error(self) -> None:
        with pytest.raises(ProtocolError):
            wire.unpack(b"\x81\xa4type\xa4\xb1\xff\xff\xff")
