"""Fuzzed input for the readers of files: arrays, jobs, servers, inventories, archives, data, run directories."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import save

from csd_emu.config.array_file import ArrayConfig
from csd_emu.engines.remote.inventory import load_inventory
from csd_emu.image.image_archive import MANIFEST, TarStream, take_manifest, unpack_files
from csd_emu.profiles.calibration.table_check import parse_table
from csd_emu.profiles.calibration.table_store import SHIPPED
from csd_emu.util.config_files import parse_config
from csd_lab.bench.security.fuzz_loop import FuzzTarget
from csd_lab.bench.security.fuzz_mutation import encoder, example_of, examples_of
from firmware_agent.common.datafiles import blocks_of, open_source
from firmware_agent.common.errors import CsdError, ImageError, ModelError
from firmware_agent.common.identity import Identity, read_identity, write_identity
from firmware_agent.common.imports import check_source
from firmware_agent.common.shard import open_shard, write_shard
from host.config.array_files import read_array
from host.config.job_file import find_model, read_job
from host.config.resolve import check_plugins
from host.config.server_group import load_server_group, read_server_group
from host.core.records import EventRecord, RoundRecord
from host.core.slice_record import SliceRecord
from host.core.states.training_state import TrainingState
from host.core.summary import Summary
from host.fleet.array_state import STATE_FILE, ArrayState, empty_folder
from host.fleet.checkpoint import Checkpoint, save_checkpoint
from host.monitoring.report.load_run import load_run
from host.monitoring.run_directory import (
    ARRAY_FILE,
    CHECKPOINT_FILE,
    JOB_FILE,
    RECORDS_FILE,
    SERVER_GROUP_FILE,
    SLICE_LINES_FILE,
    SUMMARY_FILE,
    VERSIONS_FILE,
    RunDirectory,
)
from host.monitoring.run_registry import LIVE_FILE, LiveRun, list_live
from host.policies.selection.selection_report import PLAN_FILE, SelectionReport, read_plan
from host.training.run_sources import check_sources

_ARRAY = {
    "name": "lab",
    "engine": "native",
    "devices": [{"profile": "newport", "count": 2, "name": "csd"}, {"profile": "solana", "count": 1, "name": "slow"}],
    "host": {"profile": "xeon-4108", "address": "127.0.0.1", "port": 4000, "trains": False},
    "link": {"bandwidth": "1 GB/s", "latency": "5 us"},
}
_JOB = {
    "model": "digits_cnn",
    "model_arguments": {"num_classes": 10},
    "data": {"source": "digits", "partition": {"dirichlet": 0.5}},
    "rounds": 3,
    "strategy": {"name": "fedadam"},
    "straggler": {"deadline": "5 s"},
    "target": {"accuracy": 0.9},
}
_SYNC = {
    "model": "my_net.py:build",
    "data": {"source": "digits", "private": 0.5},
    "mode": "sync",
    "tuner": {"name": "mine.py:It", "any": 1},
    "sync": {"round_steps": 10, "tuning": {"slow_batch": 4}},
    "disturb": [{"device": "csd-00", "at_step": 16, "steps": 20, "weight": 200}],
    "planner": {"prefer": "edp", "steps": 3, "unused": "powered"},
    "communication": "priority",
}
_SERVERS = {
    "name": "hall",
    "servers": [{"name": "a", "array": "array.yaml"}, {"name": "b", "array": "array.yaml"}],
    "link": {"bandwidth": "1.25 GB/s", "latency": "50 us"},
    "network": "127.0.0.0/8",
    "membership": {"min": 1, "wait": "10 min", "silence": "10 s"},
}
_INVENTORY = {
    "name": "lab",
    "defaults": {"user": "root", "jump": "admin@storage-server"},
    "groups": {"shelf": {"profile": "newport"}},
    "drives": {"shelf-1": {"host": "10.1.0.2", "groups": ["shelf"]}, "shelf-2": {"host": "10.1.1.2", "data": "/d"}},
}
_NET = (
    b"from torch import nn\n\n\nclass It:\n    pass\n\n\ndef build(width: int = 4):\n    return nn.Linear(width, 2)\n"
)


def file_targets(folder: Path) -> list[FuzzTarget]:
    """Return the targets, each with a folder of its own below `folder`."""
    makers = (_configuration, _archives, _data, _run_directory, _state)
    return [target for make in makers for target in make(folder)]


def _into(path: Path, read: Callable[[], object]) -> Callable[[bytes], object]:
    path.parent.mkdir(parents=True, exist_ok=True)

    def call(content: bytes) -> object:
        path.write_bytes(content)
        return read()

    return call


def _configuration(folder: Path) -> list[FuzzTarget]:
    def read(path: Path) -> None:
        job = read_job(path)
        find_model(job, str(path), path.parent)
        check_plugins(job, path)

    jobs, servers = folder / "jobs", folder / "servers"
    for each in (jobs, servers):
        each.mkdir()
    for name in ("my_net.py", "mine.py"):
        (jobs / name).write_bytes(_NET)
    (servers / "array.yaml").write_text(json.dumps(_ARRAY))
    array, inventory = folder / "arrays/array.yaml", folder / "inventories/drives.yaml"
    return [
        FuzzTarget("array file", "yaml", [_ARRAY], _into(array, lambda: read_array(array))),
        FuzzTarget("job file", "yaml", [_JOB, _SYNC], _into(jobs / "job.yaml", lambda: read(jobs / "job.yaml"))),
        FuzzTarget(
            "servers file",
            "yaml",
            [_SERVERS],
            _into(servers / "servers.yaml", lambda: read_server_group(servers / "servers.yaml", "a")),
            1.5,
        ),
        FuzzTarget("inventory", "yaml", [_INVENTORY], _into(inventory, lambda: load_inventory(inventory))),
        FuzzTarget("model file", "bytes", [_NET], _check_model, 1.5),
    ]


def _check_model(content: bytes) -> None:
    try:
        check_source(content.decode(), "my_net.py", "build")
    except ValueError as error:  # that is what it says
        raise ModelError(str(error)) from error


def _archives(folder: Path) -> list[FuzzTarget]:
    path = folder / "archives"
    path.mkdir()
    identity = example_of(Identity)
    write_identity(path / "identity.tar", msgspec.convert(identity, Identity))
    images = np.zeros((4, 1, 8, 8), np.uint8)
    write_shard(path / "shard.tar", "digits", {"image": images, "label": np.arange(4, dtype=np.int64)})
    identities, shards = (path / "identity.tar").read_bytes(), (path / "shard.tar").read_bytes()
    facts = {"a": {"size_bytes": 5, "sha256": hashlib.sha256(b"hello").hexdigest()}}
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
        manifest = json.dumps({"format": 1, "layer": "l", "files": facts}).encode()
        for name, content in ((MANIFEST, manifest), ("a", b"hello")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    out = path / "out"
    out.mkdir()

    def unpack(content: bytes) -> None:
        empty_folder(out)
        archive = TarStream(io.BytesIO(content))
        try:
            unpack_files(archive, take_manifest(archive), out, 1 << 22)
        except (ValueError, OSError, RecursionError, msgspec.MsgspecError) as error:  # as `unpack_archive` takes them
            raise ImageError(str(error)) from error

    return [
        FuzzTarget("image archive", "bytes", [stream.getvalue()[:4096]], unpack, 3.0),
        FuzzTarget(
            "enrolment",
            "bytes",
            [identities[:4096]],
            _into(path / "identity.tar", lambda: read_identity(path / "identity.tar")),
        ),
        FuzzTarget(
            "shard", "bytes", [shards[:8192]], _into(path / "shard.tar", lambda: open_shard(path / "shard.tar")), 1.5
        ),
    ]


def _data(folder: Path) -> list[FuzzTarget]:
    images, labels = np.zeros((3, 1, 4, 4), np.uint8), np.arange(3, dtype=np.int64)
    plain, packed = io.BytesIO(), io.BytesIO()
    np.savez(plain, images=images, labels=labels)
    np.savez_compressed(packed, images=images, labels=labels)
    tensors = save({"images": images, "labels": labels})
    header = bytes([0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 4])
    idx = [header + bytes(48), gzip.compress(header + bytes(48))]
    return [
        _of_data("npz", folder / "npz/x.npz", [plain.getvalue(), packed.getvalue()]),
        _of_data("safetensors", folder / "tensors/x.safetensors", [tensors]),
        _of_data("idx", folder / "idx/train-images-idx3-ubyte", idx),
        _of_data("image", folder / "images/a/0.png", _pictures()),
    ]


def _of_data(name: str, path: Path, seeds: Sequence[bytes]) -> FuzzTarget:
    place = path if name in ("npz", "safetensors") else path.parents[0 if name == "idx" else 1]

    def read() -> None:
        data = open_source(place).train
        for column in data.fields.values():
            column[np.arange(min(2, len(data)))]
            for _ in blocks_of(column, ""):
                pass

    path.parent.mkdir(parents=True)
    if name == "idx":
        (path.parent / "train-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 0, 1, 2]))
    return FuzzTarget(f"data {name}", "bytes", seeds, _into(path, read), 3.0)


def _pictures() -> list[bytes]:
    from PIL import Image

    found = []
    for kind in ("PNG", "BMP", "PPM", "TIFF", "JPEG"):
        stream = io.BytesIO()
        Image.new("L", (4, 4)).save(stream, kind)
        found.append(stream.getvalue())
    return found


def _run_directory(folder: Path) -> list[FuzzTarget]:
    path = folder / "run"
    path.mkdir()
    records = examples_of(RoundRecord, EventRecord)
    summary, plan = example_of(Summary), example_of(SelectionReport)
    versions = {"host": {"python": "3.11"}, "devices": {"csd-00": {"torch": "2"}}, "profiles": {}, "sources": {}}
    seeds: dict[str, tuple[str, list[Any]]] = {
        RECORDS_FILE: ("lines", [records, [*records, *records]]),
        SUMMARY_FILE: ("json", [summary]),
        VERSIONS_FILE: ("json", [versions]),
        SLICE_LINES_FILE: ("lines", [examples_of(SliceRecord)]),
        PLAN_FILE: ("json", [plan]),
        ARRAY_FILE: ("yaml", [_ARRAY]),
        JOB_FILE: ("yaml", [_JOB]),
    }
    for name, (codec, values) in seeds.items():
        (path / name).write_bytes(encoder(codec)(values[0]))
    state = TrainingState(1, 0.5, 1.0, {"w": np.zeros(3, np.float32)}, {}, {})
    save_checkpoint(path / CHECKPOINT_FILE, Checkpoint(state, 1.0), "j")
    seeds[CHECKPOINT_FILE] = "bytes", [(path / CHECKPOINT_FILE).read_bytes()]
    whole = {file.name: file.read_bytes() for file in path.iterdir()}

    def target(name: str, codec: str, values: list[Any]) -> FuzzTarget:
        def call(content: bytes) -> None:
            for other, known in whole.items():
                if other in (name, RECORDS_FILE):
                    (path / other).write_bytes(content if other == name else known)
            try:
                _resume(path)
            finally:
                (path / name).write_bytes(whole[name])

        return FuzzTarget(f"run directory: {name}", codec, values, call, 0.8)

    return [target(name, codec, values) for name, (codec, values) in seeds.items()]


def _resume(path: Path) -> None:
    """Read all that resuming and reporting read; each reader has its turn, and the first error is raised at the end."""
    errors: list[Exception] = []
    with RunDirectory.reopen(path) as directory:
        readers = (
            lambda: check_sources(path, JOB_FILE, VERSIONS_FILE, False),
            lambda: read_array(path / ARRAY_FILE),
            directory.read_summary,
            directory.read_slices,
            lambda: directory.load_checkpoint("j"),
            lambda: read_plan(path),
            lambda: load_run(path, trusted=True),
            lambda: directory.rewind(1),
        )
        for read in readers:
            try:
                read()
            except Exception as error:
                errors.append(error)
    if errors:
        raise next((error for error in errors if not isinstance(error, CsdError)), errors[0])


def _state(folder: Path) -> list[FuzzTarget]:
    place = folder / "arrays-up/lab"
    state = example_of(ArrayState) | {"config": _ARRAY, "data": {"source": "digits"}}

    def load() -> None:
        found = ArrayState.load(place)
        if found is not None:
            parse_config(found.config, ArrayConfig, STATE_FILE)

    tables = [json.loads(path.read_bytes()) for path in sorted(SHIPPED.glob("*.json"))[:2]]
    server_group = {
        "server": "a",
        "config": _SERVERS,
        "own": _ARRAY,
        "whole": _ARRAY | {"digits": {"csd": 2, "slow": 2}},
        "arrays": {"array.yaml": _ARRAY},
    }
    server_groups = folder / "halls" / SERVER_GROUP_FILE
    return [
        FuzzTarget("array state", "json", [state], _into(place / STATE_FILE, load), 1.5),
        FuzzTarget(
            "live run", "json", [example_of(LiveRun)], _into(place / LIVE_FILE, lambda: list_live(place.parent)), 1.5
        ),
        FuzzTarget(
            "servers of a run",
            "json",
            [server_group],
            _into(server_groups, lambda: load_server_group(server_groups)),
            1.5,
        ),
        FuzzTarget("calibration table", "json", tables, lambda content: parse_table(content, "table"), 1.5),
    ]
