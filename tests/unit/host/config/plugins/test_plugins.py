"""Plug-ins: names, entry points, options against signatures, and what holds a user's code to its promises."""

import warnings
from pathlib import Path
from typing import Any, cast

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from csd_emu.util.config_files import parse_config
from firmware_agent.common.errors import CheckpointError, ConfigurationError, PluginError, PluginFailed
from firmware_agent.common.slices import Array
from host.config.job_file import JobConfig
from host.config.plugins.kinds import LOSS, STRATEGY, TUNER
from host.config.plugins.plugin_loading import load_plugin
from host.config.plugins.plugin_section import StrategySection, UserSection
from host.config.resolve import load_plugins
from host.policies.aggregation import Contribution, FedAvg, UserStrategy, make_strategy
from host.policies.batching import SpeedTable
from host.policies.batching.make import TunerArguments, make_tuner
from host.policies.batching.retune_rules import RetuneRules
from host.policies.batching.user_tuner import UserTuner
from tests import ROOT
from tests.support.examples import examples
from tests.support.plugins import STATEFUL, install_package
from tests.unit.host.policies.aggregation.test_strategies import PARAMETERS, rounds

EXAMPLES = ROOT / "examples"
BASE: dict[str, Any] = {"model": "digits_cnn", "data": {"source": "digits"}}
TABLES = [SpeedTable("newport", np.arange(1, 33) / 100.0), SpeedTable("small", np.arange(1, 17) / 25.0)]
SCHEMA = jsonschema.Draft202012Validator(JobConfig.model_json_schema())


def job_of(**changes: Any) -> JobConfig:
    return parse_config(BASE | changes, JobConfig, "job.yaml")


def load(folder: Path, source: str, kind: str = "strategy", **options: Any) -> Any:
    """Load class `It` from a file with this source, with these options."""
    (folder / "job.yaml").write_text("")
    (folder / "mine.py").write_text(source, encoding="utf-8")
    section = {"name": "mine.py:It"} | options
    mode = "sync" if kind == "tuner" else "federated"
    plugins = load_plugins(job_of(mode=mode, **{kind: section}), folder / "job.yaml")
    return plugins.tuner if kind == "tuner" else plugins.strategy


def strategy(folder: Path, source: str, **options: Any) -> UserStrategy:
    return UserStrategy(load(folder, source, **options), 0.9, PARAMETERS)


def tuner(folder: Path, body: str) -> UserTuner:
    source = (
        "import numpy as np\nfrom csd_emu.extend import FixedBatches, Retune\n"
        "class It(FixedBatches):\n    def __init__(self, batches, tables, names):\n"
        f"        super().__init__(batches, tables, names)\n{body}\n"
    )
    arguments = TunerArguments(TABLES, np.array([8, 2]), ["a", "b"], 100, 0.0, RetuneRules())
    made = make_tuner("none", arguments, load(folder, source, "tuner"))
    assert isinstance(made, UserTuner)
    return made


CALLED = """
import functools
from torch import nn

class L:
    gamma: str = "of the class"

    def __call__(self, outputs, batch, gamma: int = 1):
        return outputs.mean()

def function(outputs, batch, gamma: int = 1):
    return outputs.mean()

inst, part, module, cached = L(), functools.partial(function), nn.MSELoss(), functools.lru_cache(function)
"""
STATELESS = "from csd_emu.extend import Stateless\nclass It(Stateless):\n"
IDENTITY = f"{STATELESS}    def aggregate(self, weights, parts):\n        return dict(weights)\n"


class TestNames:
    def test_wrong_sections_say_what_is_meant(self, subtests: pytest.Subtests) -> None:
        for changes, words in [
            (
                {"strategy": "fedavgg"},
                ["strategy: ", "'fedavgg' is not known; did you mean 'fedavg'?", "my_strategy.py"],
            ),
            ({"strategy": ":It"}, ["is not known"]),
            ({"strategy": "mine.py:"}, ["the class is missing; write mine.py:Class"]),
            ({"strategy": 5}, ["must be a name, or a mapping with one"]),
            ({"strategy": {"mu": 1}}, ["must be a name, or a mapping with one"]),
            ({"strategy": {"name": "fedprox", "muu": 1}}, ["strategy.muu: unknown key; did you mean 'mu'?"]),
            ({"strategy": {"name": "a.py:It", "not valid": 1}}, ["'not valid' cannot be the name of an option"]),
            ({"mode": "sync", "tuner": "hypertunee"}, ["did you mean 'hypertune'?"]),
            ({"mode": "sync", "tuner": {"name": "stannis", "x": 1}}, ["stannis has no key 'x' here", "sync.tuning"]),
            ({"mode": "sync", "tuner": None}, ["must be a name, or a mapping with one"]),
        ]:
            with subtests.test(changes=changes, words=words):
                with pytest.raises(ConfigurationError) as error:
                    job_of(**changes)
                assert all(word in str(error.value) for word in words), error.value

    @settings(max_examples=examples(50))
    @given(
        name=st.sampled_from(["mine.py:It", "pkg.module:Class", "pkg:Outer.Inner"]),
        options=st.dictionaries(
            st.from_regex(r"[a-z]{1,8}", fullmatch=True).filter(lambda key: key != "name"),
            st.none()
            | st.booleans()
            | st.integers(-5, 5)
            | st.floats(-9, 9)
            | st.text("ab")
            | st.lists(st.integers(0, 3)),
            max_size=3,
        ),
        short=st.booleans(),
    )
    def test_a_job_goes_through_its_file_and_its_schema(self, name: str, options: dict[str, Any], short: bool) -> None:
        section = name if short and not options else {"name": name} | options
        for changes in ({"strategy": section}, {"mode": "sync", "tuner": section}):
            SCHEMA.validate(BASE | changes)
            job = job_of(**changes)
            written = job.model_dump(mode="json")
            SCHEMA.validate(written)
            assert parse_config(written, JobConfig, "again") == job
            found = job.tuner if "tuner" in changes else job.strategy
            assert isinstance(found, UserSection)
            assert found.options == options

    @pytest.mark.parametrize(
        "changes",
        [
            {"strategy": {"name": "fedprox", "muu": 1}},
            {"strategy": {"name": "fedavg", "mu": 1}},
            {"strategy": {"name": "a.py:It"}, "tuner": {"name": "hypertune", "x": 1}},
            {"strategy": 5},
        ],
    )
    def test_the_schema_refuses_free_keys_under_built_in_names(self, changes: dict[str, Any]) -> None:
        with pytest.raises(jsonschema.ValidationError):
            SCHEMA.validate(BASE | changes)

    def test_the_built_in_names_are_those_of_the_sections(self) -> None:
        for name in STRATEGY.built_in:
            assert not isinstance(job_of(strategy=name).strategy, UserSection)
        assert StrategySection is not None


class TestEntryPoints:
    def test_a_strategy_of_an_installed_package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        install_package(tmp_path / "site", "robust_pkg", IDENTITY, {STRATEGY.group: "robust = robust_pkg:It"})
        monkeypatch.syspath_prepend(tmp_path / "site")
        job = job_of(strategy="robust")
        plugin = load_plugins(job, tmp_path / "job.yaml").strategy
        assert plugin is not None
        assert (plugin.source, plugin.portable_name) == (None, "robust")
        assert plugin.code_sha256
        assert isinstance(make_strategy(job.strategy, 0.9, PARAMETERS, plugin), UserStrategy)
        with pytest.raises(ConfigurationError, match="did you mean 'robust'"):
            job_of(strategy="robustt")

    def test_one_that_shadows_a_built_in_name_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        install_package(tmp_path / "site", "thief", IDENTITY, {STRATEGY.group: "fedavg = thief:It"})
        monkeypatch.syspath_prepend(tmp_path / "site")
        with pytest.raises(PluginError, match=r"'fedavg' is built in, and package thief declares it too.*rename"):
            load_plugins(job_of(), tmp_path / "job.yaml")
        assert load_plugins(job_of(strategy="fednova"), tmp_path / "job.yaml").strategy is None
        assert load_plugins(job_of(mode="sync"), tmp_path / "job.yaml").tuner is None

    def test_one_that_two_packages_declare_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("one_pkg", "two_pkg"):
            install_package(tmp_path / "site", name, IDENTITY, {TUNER.group: f"greedy = {name}:It"})
        monkeypatch.syspath_prepend(tmp_path / "site")
        with pytest.raises(PluginError, match=r"declared twice: one_pkg:It of package one_pkg and two_pkg:It"):
            load_plugins(job_of(mode="sync", tuner="greedy"), tmp_path / "job.yaml")


class TestArgumentsByPosition:
    """What a function of the user's is given by position may be called anything."""

    GIVEN: tuple[tuple[str, int], ...] = (
        *(("loss", 2), ("metrics", 2), ("augment", 2)),
        *(("collate", 1), ("schedule", 2), ("optimizer", 1)),
    )

    @staticmethod
    def load(folder: Path, key: str, source: str, **options: Any) -> Any:
        (folder / "mine.py").write_text(source)
        section: Any = {"name": "mine.py:it", **options}
        job = job_of(**{key: [section] if key in ("metrics", "augment") else section})
        found = getattr(load_plugins(job, folder / "job.yaml"), key)
        return found[0] if key in ("metrics", "augment") else found

    @pytest.mark.parametrize(("key", "count"), GIVEN)
    def test_their_names_are_free(self, tmp_path: Path, key: str, count: int) -> None:
        names = ", ".join(["pred", "truth"][:count])
        for arguments in (f"{names}, share=1.0", f"{names}, /, share=1.0", "*all, share=1.0"):
            assert self.load(tmp_path, key, f"def it({arguments}): ...", share=0.5).options == {"share": 0.5}
        with pytest.raises(PluginError, match=r"share2: unknown key; did you mean 'share'"):
            self.load(tmp_path, key, f"def it({names}, share): ...", share2=0.5)

    @pytest.mark.parametrize(("key", "count"), GIVEN)
    def test_too_few_are_refused(self, tmp_path: Path, key: str, count: int) -> None:
        first = ["pred"][: count - 1]
        told = rf"mine\.py:it' takes \({', '.join([*first, 'share'])}\); call its first arguments "
        with pytest.raises(PluginError, match=told):
            self.load(tmp_path, key, f"def it({', '.join([*first, '*', 'share'])}): ...")

    def test_a_class_has_options_of_any_name(self, tmp_path: Path) -> None:
        source = "class it:\n    def __init__(self, batch, k=1): ...\n    def __call__(self, a, b): ..."
        assert self.load(tmp_path, "loss", source, batch=3).options == {"batch": 3}
        source = "class it:\n    def __init__(self, weights, k=1): ..."
        assert self.load(tmp_path, "optimizer", source, k=3).options == {"k": 3}


class TestOptions:
    SOURCE = (
        "from typing import Annotated, Literal\nfrom pydantic import Field\nfrom csd_emu.extend import FedAvg\n"
        "class It(FedAvg):\n"
        "    def __init__(self, parameters, trim: Annotated[float, Field(ge=0, lt=0.5)],\n"
        "                 sort: Literal['a', 'b'] = 'a', shape: tuple[int, int] = (1, 1)):\n"
        "        self.found = (trim, sort, shape, parameters)\n"
    )

    def test_they_are_arguments_of_the_constructor(self, tmp_path: Path) -> None:
        plugin = load(tmp_path, self.SOURCE, trim=0, shape=[2, 3])
        assert plugin.options == {"trim": 0.0, "shape": (2, 3)}
        assert plugin.make(parameters={"w"}, momentum=0.9).found == (0.0, "a", (2, 3), {"w"})

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (
                {"trimm": 0.1},
                ["job.yaml: strategy.trimm: unknown key; did you mean 'trim'?", "strategy.trim: is missing"],
            ),
            ({"trim": 0.1, "zzz": 1}, ["strategy.zzz: unknown key; valid keys: trim, sort, shape"]),
            ({"trim": 0.5}, ["strategy.trim: Input should be less than 0.5 (it is 0.5)"]),
            ({"trim": "0.1"}, ["strategy.trim: Input should be a valid number (it is '0.1')"]),
            ({"trim": 0.1, "sort": "c"}, ["strategy.sort: Input should be 'a' or 'b'"]),
            ({"trim": 0.1, "shape": [1, "x"]}, ["strategy.shape[1]: must be a whole number (it is 'x')"]),
            ({"trim": 0.1, "parameters": ["w"]}, ["strategy.parameters: is given by the run"]),
        ],
    )
    def test_wrong_ones_are_named_as_in_the_rest_of_the_file(
        self, tmp_path: Path, options: dict[str, Any], words: list[str]
    ) -> None:
        with pytest.raises(PluginError) as error:
            load(tmp_path, self.SOURCE, **options)
        assert all(word in str(error.value) for word in words), error.value

    @pytest.mark.parametrize(
        ("head", "words"),
        [
            ("def __init__(self, x, /):", "can only be given by position"),
            ("def __init__(self, x: 'nowhere.Type'):", "the signature of .* cannot be read"),
            ("def __init__(self, x: threading.Lock = None):", "has a type that no job file can give"),
        ],
    )
    def test_a_signature_that_cannot_be_used(self, tmp_path: Path, head: str, words: str) -> None:
        source = f"import threading\nfrom csd_emu.extend import FedAvg\nclass It(FedAvg):\n    {head}\n        pass\n"
        with pytest.raises(PluginError, match=words):
            load(tmp_path, source, x=1)

    @pytest.mark.parametrize(
        ("name", "options"), [("inst", {"gamma": 2}), ("part", {"gamma": 2}), ("module", {}), ("cached", {"gamma": 2})]
    )
    def test_what_is_called_may_be_an_instance(self, tmp_path: Path, name: str, options: dict[str, JsonValue]) -> None:
        (tmp_path / "l.py").write_text(CALLED)
        section = UserSection.model_validate({"name": f"l.py:{name}"} | options)
        assert load_plugin(LOSS, section, tmp_path).options == options
        if name == "inst":
            wrong = UserSection.model_validate({"name": "l.py:inst", "gamma": "2"})
            with pytest.raises(PluginError, match=r"loss\.gamma: .* \(it is '2'\)"):
                load_plugin(LOSS, wrong, tmp_path)

    def test_a_constructor_that_takes_anything_gets_anything(self, tmp_path: Path) -> None:
        source = "from csd_emu.extend import FedAvg\nclass It(FedAvg):\n    def __init__(self, **all): self.all = all\n"
        assert load(tmp_path, source, x=1, y="z").make(momentum=0.5).all == {"x": 1, "y": "z"}


def test_a_broken_strategy_is_refused_before_anything_starts(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for source, words in [
        ("import not_there\n", "cannot be imported: ModuleNotFoundError: No module named 'not_there'.*mine.py, line 1"),
        ("class Other: pass\n", "cannot be imported: AttributeError: .* no attribute 'It'"),
        ("It = 5\n", "It is not callable"),
        ("def It(: pass\n", r"cannot be imported: SyntaxError: .* \(mine.py, line 1\)$"),
        (
            "class It: pass\n",
            "It is no strategy, aggregate is missing; derive it from csd_emu.extend.Stateless",
        ),
        (f"{STATELESS}    def aggregate(self, weights): pass\n", "aggregate must take 2 arguments by position"),
        (
            f"{STATELESS}    def aggregate(self, w, p): pass\n    def first_weights(self): pass\n",
            "first_weights must take 1 arguments by position",
        ),
        (
            f"{STATELESS}    proximal = -1\n    def aggregate(self, w, p): pass\n",
            "proximal must be a number, 0 or more",
        ),
        (f"{STATELESS}    def __init__(self): 1 / 0\n", "failed: ZeroDivisionError: .*mine.py, line 3"),
        (f"{STATELESS}    def __init__(self): raise SystemExit(0)\n", "failed: SystemExit: 0 .*mine.py, line 3"),
        ("raise SystemExit(0)\n", "cannot be imported: SystemExit: 0 .*mine.py, line 1"),
        (
            f"{STATELESS}    def aggregate(self, w, p): pass\n    @property\n    def proximal(self): 1 / 0\n",
            "proximal failed: ZeroDivisionError: .*mine.py, line 5",
        ),
        (f"{STATELESS}    @property\n    def aggregate(self): 1 / 0\n", "aggregate failed: ZeroDivisionError"),
    ]:
        with subtests.test(source=source, words=words), pytest.raises(PluginError, match=words):
            strategy(tmp_path, source)


def test_a_file_that_cannot_be_read_and_one_that_is_too_large(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="give a path from the job file's folder"):
        load_plugin(STRATEGY, UserSection(name="not_there.py:It"), tmp_path)
    with pytest.raises(PluginError, match="make it a package"):
        load(tmp_path, "#" * (1 << 20))


def test_a_strategy_that_fails_in_a_round_is_named(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for body, words in [
        ("raise KeyError('w')", "aggregate failed: KeyError: 'w' .*mine.py, line 4"),
        ("return None", "must return the tensors .*, not NoneType"),
        ("return {}", "must return the tensors .*, not no tensors"),
        ("return {n: a[..., None] for n, a in weights.items()}", "aggregate returned .* with shape"),
        ("return {n: 'x' for n in weights}", "aggregate returned .* and type <U1"),
        ("raise SystemExit(0)", "aggregate failed: SystemExit: 0 .*mine.py, line 4"),
        ("raise type('Boom', (BaseException,), {})('mine')", "aggregate failed: Boom: mine .*mine.py, line 4"),
        ("return {n: [[1, 2], [3]] for n in weights}", "aggregate failed: ValueError: "),
        (
            "import torch; return {n: torch.ones(2, requires_grad=True) for n in weights}",
            "aggregate failed: RuntimeError",
        ),
        ("return weights | {'b': weights['b'] * float('nan')}", "aggregate returned b with values that are no finite"),
        ("return weights | {'b': [1e300, 0]}", "aggregate returned b with values that are no finite float32"),
        ("return weights | {'n': float('inf')}", "aggregate returned n with values that are no finite int64"),
        ("weights['b'][...] = 0", "aggregate failed: ValueError: .*read-only"),
        ("parts[0].weights['b'][...] = 0", "aggregate failed: ValueError: .*read-only"),
    ]:
        with subtests.test(body=body, words=words):
            failing = strategy(tmp_path, f"{STATELESS}    def aggregate(self, weights, parts):\n        {body}\n")
            before: dict[str, Array] = {"b": np.ones(2, np.float32), "n": np.asarray(3)}
            with pytest.raises(PluginFailed, match=words):
                failing.aggregate(before, [Contribution(before, 1, 1)])
            assert before["b"].tolist() == [1, 1]


@pytest.mark.parametrize("returned", ["None", "-5", "float('inf')", "float('nan')", "'long'"])
def test_how_long_a_round_takes_must_be_a_time(tmp_path: Path, returned: str) -> None:
    source = "from csd_emu.extend import FedAvg\nclass It(FedAvg):\n    def round_seconds(self, finish):\n"
    with pytest.raises(PluginFailed, match=r"round_seconds returned .*; return seconds, 0 or more"):
        cast(Any, strategy(tmp_path, f"{source}        return {returned}\n")).round_seconds({"csd-00": 1.0})
    kept = cast(Any, strategy(tmp_path, f"{source}        return max(finish.values())\n"))
    assert kept.round_seconds({"csd-00": 1.0}) == 1.0


@settings(max_examples=examples(25))
@given(data=st.data())
def test_a_users_copy_of_fedavg_is_fedavg_to_the_bit(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    before, parts = data.draw(rounds())
    source = "from csd_emu.extend import FedAvg\nclass It(FedAvg): pass\n"
    one = strategy(tmp_path_factory.mktemp("user"), source).aggregate(before, parts)
    other = FedAvg().aggregate(before, parts)
    assert list(one) == list(before)
    assert {n: (a.dtype, a.tobytes()) for n, a in one.items()} == {n: (a.dtype, a.tobytes()) for n, a in other.items()}


@settings(max_examples=examples(25))
@given(data=st.data())
def test_the_state_of_a_users_strategy_goes_through_a_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    folder = tmp_path_factory.mktemp("user")
    source = STATEFUL.replace("class Slow", "class It")
    one, other, third = (strategy(folder, source, keep=0.25) for _ in range(3))
    before, parts = data.draw(rounds())
    more = [Contribution(p.weights, p.samples + 1, p.steps) for p in reversed(parts)]
    whole = one.aggregate(one.aggregate(before, parts), more)
    middle = other.aggregate(before, parts)
    third.load_state({name: array.copy() for name, array in other.state().items()})
    assert {n: a.tobytes() for n, a in third.aggregate(middle, more).items()} == {
        n: a.tobytes() for n, a in whole.items()
    }


def test_states_that_cannot_be_kept_or_taken_back(tmp_path: Path) -> None:
    wrong = strategy(tmp_path, f"{IDENTITY}    def state(self):\n        return {{'x': object()}}\n")
    with pytest.raises(PluginFailed, match="state must return a mapping of names to arrays"):
        wrong.state()
    ragged = strategy(tmp_path, f"{IDENTITY}    def state(self):\n        return {{'x': [[1, 2], [3]]}}\n")
    with pytest.raises(PluginFailed, match="state failed: ValueError"):
        ragged.state()
    with pytest.raises(CheckpointError, match="not that of this strategy"):
        strategy(tmp_path, IDENTITY).load_state({"x": np.zeros(1)})
    with pytest.raises(CheckpointError, match="load_state failed: AssertionError"):
        strategy(tmp_path, STATEFUL.replace("class Slow", "class It")).load_state({"x": np.zeros(1)})


class TestTuner:
    def test_one_that_changes_nothing_is_fixed(self, tmp_path: Path) -> None:
        it = tuner(tmp_path, "")
        assert it.batches.tolist() == [8, 2]
        assert it.observe(1, np.array([0.1, np.nan])) is None
        assert it.leave(0).batches.tolist() == [0, 2]
        other = tuner(tmp_path, "")
        other.load_state(it.state())
        assert other.batches.tolist() == [0, 2]
        assert other.join(0).batches.tolist() == [8, 2]
        assert other.possible_records_per_second() == pytest.approx(10 / 0.08)

    @pytest.mark.parametrize("answer", ["7.0", "7 * super().possible_images_per_second()"])
    def test_a_method_under_its_old_name_is_called_with_a_warning(self, tmp_path: Path, answer: str) -> None:
        body = f"    def possible_images_per_second(self):\n        return {answer}\n"
        with pytest.warns(FutureWarning, match="possible_images_per_second is deprecated: call it possible_records_pe"):
            it = tuner(tmp_path, body)
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            assert it.possible_records_per_second() == pytest.approx(7 if answer == "7.0" else 7 * 10 / 0.08)

    def test_a_speed_table_answers_under_its_old_name_with_a_warning(self) -> None:
        with pytest.warns(FutureWarning, match="images_per_second is deprecated: use records_per_second") as caught:
            assert TABLES[0].images_per_second(8) == TABLES[0].records_per_second(8) == pytest.approx(8 / 0.08)
        assert caught[0].filename == __file__

    def test_a_broken_one_is_refused_before_anything_starts(self, tmp_path: Path, subtests: pytest.Subtests) -> None:
        for body, words in [
            ("    def observe(self, step): pass", "observe must take 3 arguments by position"),
            (
                "    state = None",
                "It is no tuner, state is missing; derive it from csd_emu.extend.FixedBatches",
            ),
            ("    batches = [8, 2, 1]", "batches must be 2 whole numbers, one per device"),
            ("    batches = [8.5, 2]", "batches must be 2 whole numbers"),
            ("    batches = [33, 2]", "batches has a batch of 33 for device 0, which takes 0 to 32"),
            ("    batches = [0, 0]", "batches are all 0 at the beginning"),
            ("    slowdowns = 'slow'", "slowdowns must be 2 numbers"),
            ("    slowdowns = [1.0, float('nan')]", "slowdowns must be finite numbers"),
            ("    batches = [[8], [2, 1]]", "batches is no array of numbers: ValueError"),
            ("    @property\n    def state(self): raise SystemExit(0)", "state failed: SystemExit: 0"),
        ]:
            with subtests.test(body=body, words=words), pytest.raises(PluginError, match=words):
                tuner(tmp_path, body)

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("raise RuntimeError('lost')", "observe failed: RuntimeError: lost .*mine.py"),
            ("return 5", "observe returned int, not a csd_emu.extend.Retune"),
            ("return Retune(np.array([9, 2]), (0,), self.slowdowns, '', 0.0)", "must be in force already"),
            ("return Retune(np.array([99, 2]), (0,), self.slowdowns, '', 0.0)", "has a batch of 99 for device 0"),
            (
                "self._initial[:] = 0; return Retune(self.batches, (0, 1), self.slowdowns, '', 0.0)",
                "nobody would train",
            ),
        ],
    )
    def test_one_that_fails_in_a_step_is_named(self, tmp_path: Path, line: str, words: str) -> None:
        it = tuner(tmp_path, f"    def observe(self, step, seconds, left=None):\n        {line}")
        with pytest.raises(PluginFailed, match=words):
            it.observe(1, np.array([0.1, 0.1]))

    def test_what_a_retune_of_the_base_class_does_to_a_device_that_is_gone(self, tmp_path: Path) -> None:
        it = tuner(tmp_path, "    def observe(self, *_): return self.retune(np.maximum(self.batches // 2, 1), 'half')")
        it.leave(1)
        retune = it.observe(1, np.array([0.1, np.nan]))
        assert retune is not None
        assert (retune.batches.tolist(), retune.changed) == ([4, 0], (0,))
        other = tuner(tmp_path, "")
        other.load_state(it.state())
        assert other.join(1).batches.tolist() == it.join(1).batches.tolist() == [4, 2]

    def test_a_state_that_json_cannot_hold(self, tmp_path: Path) -> None:
        with pytest.raises(PluginFailed, match="state must return what JSON can hold"):
            tuner(tmp_path, "    def state(self): return {'x': object()}").state()
        with pytest.raises(CheckpointError, match="load_state failed: KeyError"):
            tuner(tmp_path, "").load_state({"user": {}, "gone": [False, False]})


def test_what_fails_in_a_library_names_the_line_that_called_it(tmp_path: Path) -> None:
    body = "class It(FedAvg):\n    def __init__(self):\n        json.loads('')"
    source = f"import json\nfrom csd_emu.extend import FedAvg\n{body}"
    with pytest.raises(PluginError, match=r"Expecting value.* \(mine.py, line 5\)"):
        strategy(tmp_path, source)


@pytest.mark.parametrize(("folder", "file"), [("strategy", "geometric_median.py"), ("tuner", "step_down.py")])
def test_the_examples_are_under_40_lines_and_load(folder: str, file: str) -> None:
    from csd_emu.util.config_files import load_config

    assert len((EXAMPLES / folder / file).read_text(encoding="utf-8").splitlines()) < 40
    path = EXAMPLES / folder / "job.yaml"
    assert list(load_plugins(load_config(path, JobConfig), path))


def test_the_geometric_median_does_not_mind_a_drive_that_returns_nonsense() -> None:
    path = EXAMPLES / "strategy" / "job.yaml"
    section = UserSection.model_validate({"name": "geometric_median.py:GeometricMedian", "turns": 20})
    plugin = load_plugin(STRATEGY, section, path.parent)
    it = UserStrategy(plugin, 0.9, {"w"})
    honest = [Contribution({"w": np.full(2, value)}, 1, 1) for value in (1.0, 2.0, 3.0)]
    liar = Contribution({"w": np.array([1e9, -1e9])}, 1, 1)
    after = it.aggregate({"w": np.zeros(2)}, [*honest, liar])["w"]
    assert 1.0 < after.min() < after.max() < 3.0
