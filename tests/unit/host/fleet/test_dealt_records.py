"""Records are dealt out as `data.partition` says; a function of the user's own is held to what it must return."""

import hashlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.config.array_file import ArrayConfig, Device
from csd_emu.util.config_files import parse_config
from firmware_agent.common.errors import ConfigurationError, DataError, PluginError
from host.config.job_file import DataSection, JobConfig
from host.config.plugins.plugin_loading import Plugin
from host.config.resolve import check_plugins, load_plugins
from host.core.datasets import Dataset, load_dataset
from host.fleet.checkpoint import job_sha256
from host.fleet.shards import ShardAssignment, deal_out, dealt_alike

NODES = [Device(name=f"csd-{n}", number=n, profile="newport", engine="native") for n in range(3)]
COUNT = 60
WAYS: list[dict[str, Any]] = [
    {},
    {"dirichlet": 0.5},
    {"classes_per_drive": 2},
    {"quantity": 0.5},
    {"column": "user"},
    {"function": "mine.py:split"},
]
SPLIT = """
import numpy as np

def split(fields, drives, generator, skip=0):
    order = generator.permutation(len(fields["label"]))[skip:]
    return np.array_split(order, drives)
"""


def records(**fields: Any) -> Dataset:
    given = {
        "image": np.zeros((COUNT, 1, 2, 2), np.uint8),
        "label": np.arange(COUNT) % 5,
        "user": np.arange(COUNT) // 6,
    }
    return Dataset("some", given | fields, given, 1.0, input_name="image")


def job_of(partition: dict[str, Any], **data: Any) -> JobConfig:
    content = {"source": "./some.npz", "private": 1.0, "partition": partition} | data
    return parse_config({"model": "digits_cnn", "data": content}, JobConfig, "job.yaml")


def loaded(folder: Path, source: str, **partition: Any) -> tuple[DataSection, Plugin]:
    (folder / "mine.py").write_text(source)
    job = job_of({"function": "mine.py:split"} | partition)
    own = load_plugins(job, folder / "job.yaml").partition
    assert own is not None
    return job.data, own


def deal_by(folder: Path, body: str) -> ShardAssignment:
    data, own = loaded(folder, f"import numpy as np\ndef split(fields, drives, generator):\n    {body}\n")
    return deal_out(records(), data, NODES, 0, own)


@pytest.mark.parametrize("partition", WAYS)
def test_every_way_deals_each_private_record_once_and_by_the_seed(partition: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SPLIT)
    job = job_of(partition, private=0.5)
    own = load_plugins(job, tmp_path / "job.yaml").partition
    one, same, other = (deal_out(records(), job.data, NODES, seed, own) for seed in (1, 1, 2))
    assert one.sha256 == same.sha256 != other.sha256
    together = np.concatenate([*one.private, one.public])
    assert sorted(together.tolist()) == list(range(COUNT))
    assert all(len(part) > 0 for part in one.private)
    assert dealt_alike(NODES, job.data, [300] * 3) == (not partition)


def test_even_and_dirichlet_deals_are_what_they_were() -> None:
    """Hashes of the deals of the release before the other ways."""
    found = []
    for private in (1.0, 0.4):
        for dirichlet in (None, 0.5):
            content = {"source": "digits", "private": private, "partition": {"dirichlet": dirichlet}}
            dealt = deal_out(load_dataset("digits", 0), DataSection.model_validate(content), NODES, 5)
            parts = [*dealt.private, dealt.public]
            plain = np.concatenate([[len(part) for part in parts], *parts]).astype("<i8").tobytes()
            found.append(hashlib.sha256(plain).hexdigest()[:16])
    assert found == ["5a62ce86b89d1cee", "6d007f1ba96cd018", "8c57037478169e4d", "1adcd11ba3035387"]


def test_a_small_quantity_makes_sizes_differ_more_and_classes_stay_alike() -> None:
    def spread(concentration: float) -> float:
        data = job_of({"quantity": concentration}).data
        deals = [deal_out(load_dataset("digits", 0), data, NODES, seed) for seed in range(20)]
        return float(np.mean([np.std([len(part) for part in dealt.private]) for dealt in deals]))

    spreads = [spread(concentration) for concentration in (0.1, 1.0, 10.0, 1e5)]
    assert all(smaller > 1.5 * larger for smaller, larger in itertools.pairwise(spreads)), spreads
    assert spreads[-1] < 3
    held = deal_out(load_dataset("digits", 0), job_of({"quantity": 3.0}).data, NODES, 0).held
    shares = np.array(held.counts) / np.sum(held.counts, axis=1, keepdims=True)
    assert abs(shares - 0.1).max() < 0.05


def test_ids_of_users_are_never_split_and_classes_are_as_many_as_asked_for() -> None:
    users = records().fields["user"]
    dealt = deal_out(records(), job_of({"column": "user"}).data, NODES, 0)
    assert sum(len(set(users[part])) for part in dealt.private) == len(set(users))
    dealt = deal_out(records(), job_of({"classes_per_drive": 2}).data, NODES, 0)
    assert [len(set(part % 5)) for part in dealt.private] == [2, 2, 2]


@given(skip=st.integers(0, 30))
def test_records_that_a_function_leaves_out_are_counted(tmp_path_factory: pytest.TempPathFactory, skip: int) -> None:
    data, own = loaded(tmp_path_factory.mktemp("own"), SPLIT, options={"skip": skip})
    held = deal_out(records(), data, NODES, 0, own).held
    assert held.left_out == skip
    assert held.private == COUNT - skip


def test_the_host_and_drives_with_records_of_their_own_hold_none_of_the_private_ones() -> None:
    nodes = [NODES[0], NODES[1].model_copy(update={"data": "/own"}), NODES[2]]
    nodes.append(Device(name="host", number=3, profile="xeon-4108", engine="native"))
    held = deal_out(records(), job_of({}, private=0.5).data, nodes, 0).held
    assert (held.drives, held.public, held.private, held.left_out) == (["csd-0", "csd-2"], 30, 30, 0)


@pytest.mark.parametrize(
    ("partition", "fields", "message"),
    [
        ({"column": "patient"}, {}, "some has no field 'patient', but image, label, user"),
        ({"column": "image"}, {}, r"image of some is not one whole number per record \(uint8\[1, 2, 2\]\)"),
        ({"column": "user"}, {"user": np.zeros(COUNT)}, "user of some is not one whole number per record"),
        ({"column": "user"}, {"user": np.arange(COUNT) // 30}, "2 values cannot fill 3 shards; use fewer devices"),
        ({"classes_per_drive": 6}, {}, "6 classes per drive: the data have 5"),
        ({"classes_per_drive": 1}, {}, "leave some of the 5 unheld; ask for 2 classes per drive or more"),
        (
            {"classes_per_drive": 1},
            {"label": np.zeros(COUNT)},
            "some has no class numbers to deal out by; leave it out",
        ),
        ({"dirichlet": 1.0}, {"label": np.zeros(COUNT)}, "some has no class numbers to deal out by; leave it out"),
        ({"function": "mine.py:split"}, {}, "code of your own is not run here; start the drives with csd-emu run"),
    ],
)
def test_records_that_do_not_fit_are_refused_and_the_key_is_named(
    partition: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=rf"data\.partition\.{next(iter(partition))}: .*{message}"):
        deal_out(records(**fields), job_of(partition).data, NODES, 0)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return [[0], [1]]", "2 arrays for 3 drives; return one per drive"),
        ("return [[0], [], [1]]", "no record for drive 1; give each drive one at least"),
        ("return [[0], [1.0], [2]]", r"float64\[1\] for drive 1; return a list of whole numbers"),
        ("return np.ones((3, 60), bool)", r"bool\[60\] for drive 0; return a list of whole numbers"),
        ("return [[[0]], [1], [2]]", r"int64\[1, 1\] for drive 0"),
        ("return [[0], [60], [2]]", "record 60 for drive 1; records are 0 to 59"),
        ("return [[0], [1], [-1]]", "record -1 for drive 2"),
        ("return [[0], [1], [2**64 - 1]]", "record 18446744073709551615 for drive 2"),
        ("return [[0], [1, 7, 7], [2]]", "record 7 more than once; give it to one drive alone"),
        ("return [[0], [1], [0]]", "record 0 more than once"),
        ("return None", r"failed: TypeError: 'NoneType' object is not iterable"),
        ("return [[0], [[1], [1, 2]], [2]]", "failed: ValueError"),
        ("raise KeyError('my bug')", r"failed: KeyError: 'my bug' \(mine.py, line 3\)"),
        ("raise SystemExit", r"failed: SystemExit:  \(mine.py, line 3\)"),
        ("fields['label'][0] = 3", r"failed: ValueError: .*read-only \(mine.py, line 3\)"),
    ],
)
def test_what_a_function_must_not_return_is_refused(body: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=rf"^data\.partition 'mine\.py:split' .*{message}"):
        deal_by(tmp_path, body)


def test_the_error_of_a_function_is_the_cause_with_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(PluginError) as caught:
        deal_by(tmp_path, "raise KeyError('my bug')")
    cause = caught.value.__cause__
    assert isinstance(cause, KeyError)
    assert cause.__traceback__ is not None
    assert cause.__traceback__.tb_next is not None
    assert cause.__traceback__.tb_next.tb_frame.f_code.co_name == "split"


def test_a_function_need_not_take_what_it_does_not_use(tmp_path: Path) -> None:
    data, own = loaded(tmp_path, "def split(drives):\n    return [[n] for n in range(drives)]")
    dealt = deal_out(records(), data, NODES, 0, own)
    assert [part.tolist() for part in dealt.private] == [[0], [1], [2]]
    assert all(part.dtype == np.int64 for part in dealt.private)
    assert dealt.held.left_out == COUNT - 3


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        ({"dirichlet": 1.0, "quantity": 1.0}, "dirichlet and quantity: records can be dealt out in one way alone"),
        ({"options": {"skip": 1}}, "options: are those of a function of your own"),
        ({"quantity": 1.0, "options": {"skip": 1}}, "options: are those of a function of your own"),
        ({"function": "split"}, "'split' names none; write my_part.py:split or package.module:function"),
        ({"function": "mine.py:"}, "names none"),
        ({"function": "mine.py:split", "options": {"name": "x"}}, "'name' cannot be the name of an option"),
        ({"function": "mine.py:split", "options": {"a b": 1}}, "'a b' cannot be the name of an option"),
        ({"classes_per_drive": 0}, "classes_per_drive"),
        ({"classes_per_drive": 1.5}, "classes_per_drive"),
        ({"quantity": 0}, "quantity"),
        ({"dirichlet": float("nan")}, "dirichlet"),
        ({"column": ""}, "column"),
        ({"users": 3}, "users"),
    ],
)
def test_sections_that_make_no_sense_are_refused(partition: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"job\.yaml: data\.partition.*{message}"):
        job_of(partition)


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        ({"function": "other.py:split"}, "cannot read"),
        ({"function": "mine.py:other"}, "cannot be imported"),
        ({"function": "mine.py:split", "options": {"skpi": 1}}, "skpi: unknown key; did you mean 'skip'"),
        ({"function": "mine.py:split", "options": {"drives": 1}}, "drives: is given by the run and no option"),
        ({"function": "os:listdir"}, "standard library"),
    ],
)
def test_functions_that_are_not_there_or_take_something_else_are_refused(
    partition: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(SPLIT)
    with pytest.raises(PluginError, match=rf"job\.yaml: data\.partition.*{message}"):
        load_plugins(job_of(partition), tmp_path / "job.yaml")


def test_a_function_is_looked_at_without_being_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit")
    with pytest.raises(PluginError, match="cannot be imported"):
        load_plugins(job_of({"function": "mine.py:split"}), tmp_path / "job.yaml")
    with pytest.raises(PluginError, match="cannot be imported"):
        check_plugins(job_of({"function": "mine.py:split"}), tmp_path / "job.yaml")
    (tmp_path / "mine.py").write_text("raise SystemExit\ndef split(): pass")
    check_plugins(job_of({"function": "mine.py:split"}), tmp_path / "job.yaml")


def test_the_file_travels_under_its_own_name_and_decides_the_run(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "mine.py").write_text(SPLIT)
    job = job_of({"function": "sub/mine.py:split", "options": {"skip": 2}})
    plugins = load_plugins(job, tmp_path / "job.yaml")
    moved = plugins.portable(job)
    assert moved.data.partition.function == "mine.py:split"
    assert moved.data.partition.options == {"skip": 2}
    assert [each.file_name for each in plugins] == ["mine.py"]
    (tmp_path / "mine.py").write_text(SPLIT + "\n")
    assert load_plugins(moved, tmp_path / "job.yaml").facts != plugins.facts


def test_another_way_is_another_run() -> None:
    array = ArrayConfig.model_validate({"name": "lab", "devices": [{"profile": "newport", "count": 1}]})
    others = [{"quantity": 1.0}, {"function": "mine.py:split", "options": {"skip": 1}}]
    assert len({job_sha256(array, job_of(each), None, []) for each in (*WAYS, *others)}) == len(WAYS) + 2
