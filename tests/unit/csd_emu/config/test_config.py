import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, get_args

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.config.array_file import MAX_DEVICES, ArrayConfig
from csd_emu.config.engine_names import ArrayChanges, Clock
from csd_emu.engines.remote.inventory import load_inventory
from csd_emu.profiles import PROFILES
from csd_emu.util.config_files import Config, load_config, parse_config
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.handover import IDENTITY_SERIAL, SHARD_SERIAL
from host.config.array_files import read_array
from host.config.job_file import JobConfig, load_job
from tests import ROOT

EXAMPLES = ROOT / "examples" / "quickstart"
UNEQUAL = EXAMPLES.parent / "hypertune"
ARRAY = {"name": "lab", "engine": "native", "devices": [{"profile": "newport"}]}
JOB = {"model": "digits_cnn", "data": {"source": "digits"}}
DRIVES = sorted(name for name, profile in PROFILES.items() if profile.kind == "drive")


def load(folder: Path, content: dict[str, Any] | str, kind: type[Config]) -> Config:
    path = folder / "file.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return load_config(path, kind)


def message(folder: Path, content: dict[str, Any] | str, kind: type[Config]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(folder, content, kind)
    assert caught.value.exit_code == 2
    assert str(folder / "file.yaml") in str(caught.value)
    return str(caught.value)


def test_the_examples_are_valid() -> None:
    array, job = load_config(EXAMPLES / "array.yaml", ArrayConfig), load_config(EXAMPLES / "job.yaml", JobConfig)
    assert [device.name for device in array.list_devices()] == ["csd-00", "csd-01", "csd-02"]
    assert array.memory == 2 << 30
    assert job.target is not None
    assert job.target.accuracy == 0.95
    assert job.watchdog == 600.0


def test_the_example_of_unequal_drives_loads_and_disturbs_a_drive_that_it_has() -> None:
    array, (job, _) = load_config(UNEQUAL / "array.yaml", ArrayConfig), load_job(UNEQUAL / "job.yaml")
    assert array.host.trains
    assert len({node.profile for node in array.list_nodes()}) == 3
    assert job.tuner == "hypertune"
    assert {each.device for each in job.disturb} < {node.name for node in array.list_devices()}


def test_the_example_of_real_drives_names_drives_of_its_inventory() -> None:
    folder = EXAMPLES.parent / "drives"
    array, _ = load_config(folder / "array.yaml", ArrayConfig), load_job(folder / "job.yaml")
    real = {device.name for device in array.list_devices() if device.engine == "remote"}
    assert real < {drive.name for drive in load_inventory(folder / "drives.yaml").list_drives()}


@pytest.mark.parametrize(
    ("kind", "base", "change", "want"),
    [
        (ArrayConfig, ARRAY, {"enginee": "qemu"}, "enginee: unknown key; did you mean 'engine'?"),
        (ArrayConfig, ARRAY, {"zzz": 1}, "zzz: unknown key; valid keys: name, engine, inventory, hypervisors, spread"),
        (ArrayConfig, ARRAY, {"host": {"prot": 5000}}, "host.prot: unknown key; did you mean 'port'?"),
        (ArrayConfig, ARRAY, {"devices": [{"profile": "newport"}, {"profile": "newport", "cuont": 2}]},
         "devices[1].cuont: unknown key; did you mean 'count'?"),
        (JobConfig, JOB, {"data": {"source": "digits", "partition": {"dirichlt": 1}}},
         "data.partition.dirichlt: unknown key; did you mean 'dirichlet'?"),
        (JobConfig, JOB, {"target": {"acuracy": 0.9}}, "target.acuracy: unknown key; did you mean 'accuracy'?"),
        (JobConfig, JOB, {"epoch": 1}, "epoch: unknown key; did you mean 'epochs'?"),
    ],
)  # fmt: skip
def test_an_unknown_key_names_file_path_and_the_nearest_valid_key(
    tmp_path: Path, kind: type[Config], base: dict[str, Any], change: dict[str, Any], want: str
) -> None:
    assert want in message(tmp_path, base | change, kind)


def test_an_array_that_cannot_be_is_refused_by_its_key(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for change, want in [
        ({"memory": 5}, "memory: 5 is not a quantity"),
        ({"memory": 2.0**31}, "memory: 2147483648.0 is not a quantity"),
        ({"memory": float("nan")}, "memory: nan is not a quantity"),
        ({"memory": "2 s"}, "memory: '2 s' has the unit 's'"),
        ({"memory": "2"}, "memory: '2' has no unit"),
        ({"memory": "512 MiB"}, "memory: must be whole MiB between 1 GiB"),
        ({"memory": "17 GiB"}, "memory: must be whole MiB between 1 GiB"),
        ({"memory": "2.0001 GB"}, "memory: must be whole MiB"),
        ({"name": "Lab"}, "name: "),
        ({"name": "../lab"}, "name: "),
        ({"name": "l" * 32}, "name: "),
        ({"engine": "kvm"}, "is not known; choose one of: native, qemu, remote"),
        ({"devices": []}, "devices: "),
        ({"devices": [{"profile": "newprot"}]}, "devices[0].profile: profile 'newprot' is not known; choose one of"),
        ({"devices": [{"profile": "newport", "count": 0}]}, "devices[0].count: "),
        ({"devices": [{"profile": "newport", "count": 2000}]}, "devices[0].count: "),
        ({"devices": [{"profile": "newport", "count": 600}] * 2}, f"more than {MAX_DEVICES} devices"),
        ({"devices": [{"profile": "newport", "name": "a_b"}]}, "devices[0].name: "),
        ({"devices": [{"profile": "newport", "name": "a" * 10}]}, "devices[0].name: "),
        ({"devices": [{"count": 1}]}, "devices[0]: profile is missing; add it, or name real drives"),
        ({"host": {"port": 80}}, "host.port: "),
        ({"host": {"metrics_port": 70000}}, "host.metrics_port: "),
        ({"host": {"power_cap": "0 W"}}, "host.power_cap: must be more than 0 W"),
        ({"host": {"power_cap": "450"}}, "host.power_cap: '450' has no unit"),
        ({"host": {"power_cap": "450 V"}}, "host.power_cap: '450 V' has the unit 'V', which does not fit"),
        ({"hypervisors": []}, "hypervisors: "),
        ({"image": {"packages": ["-r other.txt"]}}, "image.packages[0]: '-r other.txt' is no package"),
        ({"image": {"packages": ["einops", "einops @ https://x"]}}, "image.packages[1]: 'einops @ https://x' is no"),
        ({"image": {"packages": ["einops=1"]}}, "image.packages[0]: 'einops=1' is no package with or without"),
        ({"image": {"packages": "einops"}}, "image.packages: "),
        (
            {
                "engine": "remote",
                "inventory": "i.yaml",
                "image": {"packages": ["einops"]},
                "devices": [{"drives": ["a"]}],
            },
            "image.packages: real drives have the packages that csd-emu deploy put there",
        ),
    ]:
        with subtests.test(change=change, want=want):
            assert want in message(tmp_path, ARRAY | change, ArrayConfig)


@pytest.mark.parametrize(
    "package", ["einops", "Flwr[rest] >= 1.42, <2", "a.b_c==1.*", "x~=2.0", "x===1.0+local", "x!=1!2"]
)
def test_packages_are_written_as_pip_takes_them(tmp_path: Path, package: str) -> None:
    array = load(tmp_path, ARRAY | {"image": {"packages": [package]}}, ArrayConfig)
    assert isinstance(array, ArrayConfig)
    assert array.image.packages == [package]


def test_a_job_that_cannot_be_is_refused_by_its_key(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for change, want in [
        ({"watchdog": 5}, "watchdog: 5 is not a quantity"),
        ({"watchdog": 5.0}, "watchdog: 5.0 is not a quantity"),
        ({"watchdog": "5 MB"}, "watchdog: '5 MB' has the unit 'MB'"),
        ({"watchdog": "0 s"}, "watchdog must be more than 0 s"),
        ({"rounds": 0}, "rounds: "),
        ({"rounds": "ten"}, "rounds: "),
        ({"epochs": -1}, "epochs: "),
        ({"batch_size": 1.5}, "batch_size: "),
        ({"learning_rate": 0}, "learning_rate: "),
        ({"learning_rate": float("inf")}, "learning_rate: "),
        ({"momentum": 1}, "momentum: "),
        ({"seed": -1}, "seed: "),
        ({"target": {"accuracy": 1.5}}, "target.accuracy: "),
        ({"target": {"accuracy": float("nan")}}, "target.accuracy: "),
        ({"data": {"source": "digits", "partition": {"dirichlet": 0}}}, "data.partition.dirichlet: "),
        ({"data": {}}, "data.source: is missing; add it"),
        ({"mode": "async"}, "mode: Input should be 'federated' or 'sync'"),
        ({"strategy": "fedavgg"}, "strategy: strategy 'fedavgg' is not known; did you mean 'fedavg'?"),
        ({"strategy": "sgd"}, "choose one of: fedadagrad, fedadam, fedavg, fedbn"),
        ({"strategy": 5}, "strategy: must be a name, or a mapping with one"),
        ({"strategy": {"mu": 1}}, "strategy: must be a name, or a mapping with one"),
        ({"strategy": {"name": "fedprox", "muu": 1}}, "strategy.muu: unknown key; did you mean 'mu'?"),
        ({"strategy": {"name": "fedavg", "mu": 1}}, "strategy.mu: unknown key; valid keys: update_norm, name"),
        ({"strategy": {"name": "fedprox", "mu": -1}}, "strategy.mu: "),
        ({"strategy": {"name": "fedadam", "beta2": 1}}, "strategy.beta2: "),
        ({"strategy": {"name": "fedadam", "tau": 0}}, "strategy.tau: "),
        ({"participation": 0}, "participation.share: "),
        ({"participation": 2}, "participation: a number alone is a share, at most 1; for a count write {count: 2}"),
        ({"participation": {"count": 0}}, "participation.count: "),
        ({"participation": {}}, "participation: must have either a share or a count"),
        ({"participation": {"share": 0.5, "count": 2}}, "participation: must have either a share or a count"),
        ({"participation": {"cuont": 2}}, "participation.cuont: unknown key; did you mean 'count'?"),
        ({"straggler": {"deadline": 2}}, "straggler.deadline: 2 is not a quantity"),
        ({"straggler": {"deadline": "0 s"}}, "straggler: deadline must be more than 0 s"),
        ({"straggler": {}}, "straggler.deadline: is missing; add it"),
        ({"checkpoint": {"every": -1}}, "checkpoint.every: "),
        ({"checkpoint": {"evry": 1}}, "checkpoint.evry: unknown key; did you mean 'every'?"),
        ({"model_arguments": {"layers": [1]}}, "model_arguments.layers"),
    ]:
        with subtests.test(change=change, want=want):
            assert want in message(tmp_path, JOB | change, JobConfig)


def test_every_broken_rule_is_named_at_once(tmp_path: Path) -> None:
    text = message(tmp_path, ARRAY | {"memory": "2 s", "enginee": 1, "name": "Lab"}, ArrayConfig)
    assert len(text.splitlines()) == 3


def test_what_is_no_mapping_in_yaml_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for text, want in [
        ("name: a\nname: b\n", "'name' occurs twice"),
        ("devices:\n  - {profile: newport, count: 1, count: 2}\n", "'count' occurs twice"),
        ("a: b: c", "no valid YAML"),
        ("name: [", "no valid YAML"),
        ("name: " + "[" * 3000, "no valid YAML"),
        ("name: !!python/object/apply:os.system [ls]", "no valid YAML"),
        ("", "must be a mapping"),
        ("- 1", "must be a mapping"),
        ("7: x", "Keys should be strings"),
        ("{? [a] : b}", "no valid YAML"),
        ("\x07", "no valid YAML"),
    ]:
        with subtests.test(text=text, want=want):
            assert want in message(tmp_path, text, ArrayConfig)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.yaml: cannot be read.*give the path"):
        load_config(tmp_path / "none.yaml", ArrayConfig)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_config(tmp_path, ArrayConfig)
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9")
    with pytest.raises(ConfigurationError, match=r"latin\.yaml: cannot be read"):
        load_config(tmp_path / "latin.yaml", ArrayConfig)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)


@pytest.mark.slow
@given(data=st.data(), kind=st.sampled_from([ArrayConfig, JobConfig]))
def test_any_value_under_any_key_is_valid_or_a_configuration_error(data: st.DataObject, kind: type[Config]) -> None:
    content = dict(ARRAY if kind is ArrayConfig else JOB)
    content[data.draw(st.sampled_from(sorted(kind.model_fields)))] = data.draw(values)
    with contextlib.suppress(ConfigurationError):
        parse_config(content, kind, "file.yaml")


groups = st.lists(
    st.fixed_dictionaries(
        {
            "profile": st.sampled_from(DRIVES),
            "count": st.integers(1, 120),
        },
        optional={"name": st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True)},
    ),
    min_size=1,
    max_size=4,
)


@given(devices=groups)
def test_names_of_devices_are_unique_in_order_and_fit_an_nvme_serial_number(devices: list[dict[str, Any]]) -> None:
    config = ArrayConfig.model_validate(ARRAY | {"devices": devices})
    drives = config.list_devices()
    assert [drive.number for drive in drives] == list(range(len(drives)))
    assert [drive.profile for drive in drives] == [g["profile"] for g in devices for _ in range(g["count"])]
    assert len({drive.name for drive in drives}) == len(drives)
    assert all(len(prefix + drive.name) <= 20 for drive in drives for prefix in (IDENTITY_SERIAL, SHARD_SERIAL))


def test_a_resolved_configuration_reads_back_as_itself(tmp_path: Path) -> None:
    for kind, content in ((ArrayConfig, ARRAY), (JobConfig, JOB)):
        config = load(tmp_path, content, kind)
        assert parse_config(config.model_dump(mode="json"), kind, "state") == config


def test_the_engine_can_be_given_in_place_of_the_files(tmp_path: Path) -> None:
    path = tmp_path / "array.yaml"
    path.write_text(yaml.safe_dump(ARRAY | {"memory": "3 GiB"}))
    assert read_array(path).engine == "native"
    other = read_array(path, ArrayChanges("qemu"))
    assert (other.engine, other.memory) == ("qemu", 3 << 30)
    with pytest.raises(ConfigurationError, match="--engine: engine: "):
        read_array(path, ArrayChanges("kvm"))


CLOCKS: list[Clock] = list(get_args(Clock))
ENGINES = ("qemu", "native")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("other", [None, *ENGINES])
@pytest.mark.parametrize("own", [None, *CLOCKS])
@pytest.mark.parametrize("samplers", [1, 3])
def test_engine_and_clock_of_the_command_line_replace_those_of_the_file_alone(
    tmp_path: Path, engine: str, clock: Clock, samplers: int, other: str | None, own: Clock | None
) -> None:
    path = tmp_path / "array.yaml"
    content = {**ARRAY, "engine": engine, "clock": clock, "memory": "3 GiB", "samplers": samplers}
    path.write_text(yaml.safe_dump(content))
    changes = ArrayChanges(other, own)

    def possible(engine: str, clock: str, samplers: int) -> bool:
        return (engine == "native" or clock in ("auto", "sampled")) and (samplers == 1 or clock == "sampled")

    wanted = other or engine, own or clock, 1 if own not in (None, "sampled") else samplers
    if possible(engine, clock, samplers) and possible(*wanted):
        config = read_array(path, changes)
        assert (config.engine, config.clock, config.samplers, config.memory) == (*wanted, 3 << 30)
        drives = {drive.engine for drive in config.list_devices()}
        assert drives == ({"native"} if config.clock == "sampled" else {config.engine})
        assert config.sampled == ({"csd-00"} if config.clock == "sampled" else set())
    else:
        with pytest.raises(ConfigurationError, match=r"clock: \w+ is for native drives|samplers: \d: "):
            read_array(path, changes)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"samplers": 2}, r"samplers: 2: .* this array's is auto: leave samplers out, or add clock: sampled"),
        ({"samplers": 0, "clock": "sampled"}, "samplers: Input should be greater than or equal to 1"),
        (
            {"clock": "sampled", "engine": "remote", "inventory": "x.yaml", "devices": [{"drives": ["a"]}]},
            "clock: sampled is for drives that are no real ones",
        ),
        *(
            (
                {"clock": "sampled", "devices": [{"profile": "newport"}, {"profile": "newport", "data": "/own"} | own]},
                r"devices\[1\]: data: /own lies in the drive, .*: leave data out, or take another clock",
            )
            for own in ({}, {"engine": "qemu"})
        ),
    ],
)
def test_what_cannot_be_sampled_is_refused(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        load(tmp_path, ARRAY | more, ArrayConfig)


def test_records_in_place_go_with_every_clock_but_the_sampled_one(tmp_path: Path) -> None:
    groups: list[dict[str, Any]] = [{"profile": "newport"}, {"profile": "newport", "data": "/own"}]
    path = tmp_path / "array.yaml"
    path.write_text(yaml.safe_dump(ARRAY | {"devices": groups}))
    for clock in CLOCKS:
        if clock == "sampled":
            with pytest.raises(ConfigurationError, match=r"--clock: .*devices\[1\]: data: /own"):
                read_array(path, ArrayChanges(clock=clock))
        else:
            assert [drive.data for drive in read_array(path, ArrayChanges(clock=clock)).list_devices()] == [
                None,
                "/own",
            ]
    real = {"engine": "remote", "drives": ["bay-1"], "data": "/own"}
    mixed = ARRAY | {"clock": "sampled", "inventory": "x.yaml", "devices": [groups[0], real]}
    assert ArrayConfig.model_validate(mixed).sampled == {"csd-00"}  # real drives have their own clock


class Renamed(Config):
    former_keys: ClassVar[Mapping[str, str]] = {"patience": "factor"}

    factor: float | None = None


def test_a_former_key_is_read_with_a_warning_that_names_the_new_one(tmp_path: Path) -> None:
    with pytest.warns(FutureWarning, match="patience is called factor"):
        assert load(tmp_path, {"patience": 2.0}, Renamed) == Renamed(factor=2.0)
    assert load(tmp_path, {"patience": None}, Renamed) == Renamed(), "what a resolved file of before says of itself"
    assert "factor are the same key" in message(tmp_path, {"patience": 2.0, "factor": 2.0}, Renamed)
    assert Renamed.model_json_schema()["properties"]["patience"]["deprecated"]
