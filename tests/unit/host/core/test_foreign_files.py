"""Files from elsewhere start nothing: what may be named, what validate runs, and whose directories are used."""

import json
import os
from importlib import metadata
from pathlib import Path

import pytest
import torch
from torch import nn

from csd_emu.config.engine_names import AS_IN_FILE
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from firmware_agent.common import imports
from firmware_agent.common.errors import CheckpointError, ConfigurationError, CsdError, ModelError, PluginError
from firmware_agent.common.models import build_model, resolve_model
from firmware_agent.common.shipped_code import ShippedCode
from host.app.resume import resume_run
from host.app.validation import validate_files
from host.config.plugins.kinds import STRATEGY, TUNER
from host.config.plugins.plugin_loading import load_plugin
from host.config.plugins.plugin_section import UserSection
from host.core.owned_files import SAFE_VARIABLE, check_owner
from host.monitoring.report.load_run import load_run
from host.training.run_sources import hash_sources

MARKS = "import pathlib\npathlib.Path({!r}).write_text('ran')\n"
NET = "from torch import nn\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
ARRAY = "name: lab\nengine: native\ndevices: [{count: 2, profile: newport}]\n"
JOB = "model: my_net.py:build\ndata: {source: digits}\nrounds: 1\n"
NAMED = [
    "os:system",
    "posix:system",
    "subprocess:run",
    "builtins:exec",
    "sys:exit",
    "importlib:import_module",
    "host.cli.main:main",
    "csd_emu.util.config_files:load_config",
    "firmware_agent.common.models:build_model",
    "csd_lab.bench.emulation:resource",
    "torch:load",
    "torch.hub:load",
    "torch:os.system",
    "numpy:load",
    "numpy:os",
    "yaml:sys",
    "yaml:unsafe_load",
    "yaml:Loader",
    "joblib:load",
    "sympy:sympify",
    "sympy.core.sympify:sympify",
    "pytest:main",
    "_pytest.config:main",
    "click:edit",
    "pip:main",
    "psutil:Popen",
    "sklearn.linear_model:LinearRegression",
    "torchgen.gen:main",
    "torch.nn.functional:relu",
    "torch:Generator",
    "not_installed_anywhere:build",
    "os.path:join",
    "..os:system",
]


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "mark"


@pytest.fixture
def files(tmp_path: Path, mark: Path) -> tuple[Path, Path]:
    array, job = tmp_path / "array.yaml", tmp_path / "job.yaml"
    array.write_text(ARRAY)
    job.write_text(JOB)
    (tmp_path / "my_net.py").write_text(MARKS.format(str(mark)) + NET)
    return array, job


@pytest.mark.slow
def test_a_model_may_not_name_this(tmp_path: Path, mark: Path, subtests: pytest.Subtests) -> None:
    for name in NAMED:
        with subtests.test(name=name):
            with pytest.raises(ModelError, match=r"cannot be imported"):
                build_model(resolve_model(name, {"command": f"touch {mark}", "f": "x"}, tmp_path))
            with pytest.raises(ModelError, match=r"cannot be imported"):
                build_model(
                    ShippedCode(name, None, {"command": f"touch {mark}"})
                )  # nor in the drive, which is told a name
            assert not mark.exists()


@pytest.mark.slow
def test_nor_may_a_strategy_or_tuner(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name in NAMED:
        for kind in [STRATEGY, TUNER]:
            with (
                subtests.test(kind=kind, name=name),
                pytest.raises(PluginError, match=r"cannot be imported"),
            ):
                load_plugin(kind, UserSection.model_validate({"name": name}), tmp_path)  # type: ignore[arg-type]


VISION = """
from torch import nn
def build(width): return nn.Linear(64, width)
class Data: pass
class Net(nn.Linear):
    def __init__(self): super().__init__(64, 10)
"""


def test_what_the_user_has_installed_may_be_named_though_it_needs_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "site/a_vision-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a-vision\nVersion: 1.0\nRequires-Dist: torch\n")
    (info / "RECORD").write_text("a_vision/__init__.py,,\n")
    (info.parent / "a_vision").mkdir()
    (info.parent / "a_vision/__init__.py").write_text(VISION)
    monkeypatch.syspath_prepend(info.parent)
    assert isinstance(build_model(resolve_model("a_vision:build", {"width": 10}, tmp_path)), nn.Module)
    assert isinstance(build_model(resolve_model("a_vision:Net", {}, tmp_path)), nn.Module)
    with pytest.raises(ModelError, match=r"no torch\.nn\.Module; nothing was built"):
        build_model(resolve_model("a_vision:Data", {}, tmp_path))
    with pytest.raises(PluginError, match="is no strategy, aggregate is missing"):
        load_plugin(STRATEGY, UserSection.model_validate({"name": "a_vision:Data"}), tmp_path).make()


def test_a_job_of_yaml_alone_starts_nothing(files: tuple[Path, Path], mark: Path) -> None:
    array, job = files
    call = f'"!!python/object/apply:os.system [touch {mark}]"'
    job.write_text(JOB.replace("my_net.py:build", f"yaml:unsafe_load\nmodel_arguments: {{stream: {call}}}"))
    for build in (False, True):
        with pytest.raises(ModelError, match="csd-emu's own dependencies"):
            validate_files(array, job, AS_IN_FILE, False, Paths.default(), build=build)
    assert not mark.exists()


@pytest.mark.parametrize(("name", "why"), [("torch:load", "is torch's"), ("torch:no_such", "no attribute 'no_such'")])
def test_validate_refuses_what_run_would_of_torch(files: tuple[Path, Path], name: str, why: str) -> None:
    array, job = files
    job.write_text(JOB.replace("my_net.py:build", name))
    with pytest.raises(ModelError, match=why):
        validate_files(array, job, AS_IN_FILE, False, Paths.default())


def test_without_metadata_as_on_a_drive_the_most_common_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    imports._dependencies.cache_clear()
    imports._is_dependency.cache_clear()
    try:
        for name in ("yaml:unsafe_load", "joblib:load", "sympy:sympify", "torch:load"):
            with pytest.raises(ModelError, match="cannot be imported"):
                build_model(ShippedCode(name, None, {"f": "x"}))
    finally:
        imports._dependencies.cache_clear()
        imports._is_dependency.cache_clear()


def test_a_file_may_not_pass_on_what_it_imported_from_python(tmp_path: Path) -> None:
    (tmp_path / "my_net.py").write_text("from os import system\nfrom functools import partial\nrun = partial(system)\n")
    for name in ("my_net.py:system", "my_net.py:run"):
        with pytest.raises(ModelError, match="standard library"):
            build_model(resolve_model(name, {}, tmp_path))


@pytest.mark.parametrize("name", ["torch.nn:Linear", "torch.nn.modules.linear:Linear"])
def test_an_installed_packages_module_may_be_named(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    assert isinstance(build_model(resolve_model(name, {"in_features": 2, "out_features": 2}, tmp_path)), nn.Module)


def test_validate_runs_nothing_and_build_does(files: tuple[Path, Path], tmp_path: Path, mark: Path) -> None:
    array, job = files
    assert not validate_files(array, job, AS_IN_FILE, False, Paths.default()).built
    assert not mark.exists()
    assert validate_files(array, job, AS_IN_FILE, False, Paths.default(), build=True).built
    assert mark.exists()
    (tmp_path / "my_net.py").write_text("def other(): pass\n")
    with pytest.raises(ModelError, match="has no 'build'"):
        validate_files(array, job, AS_IN_FILE, False, Paths.default())
    (tmp_path / "my_net.py").write_text("def build(:\n")
    with pytest.raises(ModelError, match="SyntaxError"):
        validate_files(array, job, AS_IN_FILE, False, Paths.default())


def test_validate_imports_no_strategy_either(files: tuple[Path, Path], tmp_path: Path, mark: Path) -> None:
    array, job = files
    (tmp_path / "mine.py").write_text(MARKS.format(str(mark)) + "class It: pass\n")
    job.write_text(JOB.replace("my_net.py:build", "digits_cnn") + "strategy: {name: 'mine.py:It', any: 1}\n")
    assert not validate_files(array, job, AS_IN_FILE, False, Paths.default()).built
    assert not mark.exists()


def resumable(tmp_path: Path, source: str, sources: dict[str, str] | None) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "array.yaml").write_text(ARRAY)
    (folder / "job.yaml").write_text(JOB)
    (folder / "my_net.py").write_text(source)
    (folder / "records.jsonl").touch()
    (folder / "versions.json").write_text(json.dumps({} if sources is None else {"sources": sources}))
    return folder


def resume(folder: Path, tmp_path: Path, trusted: bool = False) -> None:
    resume_run(folder, None, Paths(tmp_path, tmp_path, tmp_path), Silent(), quiet=True, trusted=trusted)


@pytest.mark.parametrize("sources", [hash_sources({"my_net.py": NET}), None, {}], ids=["changed", "old", "without"])
def test_resuming_compares_hashes_before_it_imports(sources: dict[str, str] | None, tmp_path: Path, mark: Path) -> None:
    folder = resumable(tmp_path, MARKS.format(str(mark)) + NET, sources)
    with pytest.raises(CheckpointError, match=r"my_net\.py"):
        resume(folder, tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize(
    "lines", ["data: {source: my_data.py:name}", "loss: my_data.py:name", "metrics: [my_data.py:name]"]
)
def test_resuming_compares_every_file_of_the_job(lines: str, tmp_path: Path, mark: Path) -> None:
    text = MARKS.format(str(mark)) + "name = 1\n"
    folder = resumable(tmp_path, NET, hash_sources({"my_net.py": NET, "my_data.py": "name = 1\n"}))
    job = JOB.replace("data: {source: digits}", lines) if "data" in lines[:4] else JOB + lines + "\n"
    (folder / "job.yaml").write_text(job)
    (folder / "my_data.py").write_text(text)
    with pytest.raises(CheckpointError, match=r"my_data\.py: is another than the run began with"):
        resume(folder, tmp_path)
    (tmp_path / "my_data.py").write_text(text)
    (folder / "job.yaml").write_text(job.replace("my_data.py", "../my_data.py"))
    with pytest.raises(CheckpointError, match="outside of the run directory"):
        resume(folder, tmp_path, trusted=True)
    assert not mark.exists()


def test_data_in_code_are_named_and_not_run(tmp_path: Path, mark: Path) -> None:
    (tmp_path / "array.yaml").write_text(ARRAY)
    (tmp_path / "my_data.py").write_text(MARKS.format(str(mark)) + "name = 1\n")
    job = "model: digits_cnn\ndata: {source: my_data.py:%s}\n"
    (tmp_path / "job.yaml").write_text(job % "name")
    files = tmp_path / "array.yaml", tmp_path / "job.yaml", AS_IN_FILE, False, Paths.default()
    assert not validate_files(*files).built
    (tmp_path / "job.yaml").write_text(job % "other")
    with pytest.raises(ConfigurationError, match=r"data\.source: .*my_data\.py:other: .* has no 'other'"):
        validate_files(*files)
    assert not mark.exists()


def test_resuming_takes_no_file_from_outside_of_the_directory(tmp_path: Path, mark: Path) -> None:
    folder = resumable(tmp_path, NET, {"../my_net.py": hash_sources({"": NET})[""]})
    (tmp_path / "my_net.py").write_text(NET)
    (folder / "job.yaml").write_text(JOB.replace("my_net.py", "../my_net.py"))
    with pytest.raises(CheckpointError, match="outside of the run directory"):
        resume(folder, tmp_path, trusted=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what belongs to another user")
class TestAnothersDirectory:
    def test_is_neither_reported_on_nor_resumed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: Path
    ) -> None:
        folder = resumable(tmp_path, MARKS.format(str(mark)) + NET, {})
        os.chown(folder, 65534, 65534)
        for call in (lambda: resume(folder, tmp_path), lambda: load_run(folder)):
            with pytest.raises(ConfigurationError, match=r"another user \(uid 65534\).*--trust"):
                call()
        assert load_run(folder, trusted=True).rounds == []
        monkeypatch.setenv(SAFE_VARIABLE, f"/elsewhere:{folder}")
        assert load_run(folder).rounds == []
        assert not mark.exists()

    def test_and_what_another_has_put_into_ones_own_counts_too(self, tmp_path: Path) -> None:
        (tmp_path / "job.yaml").touch()
        check_owner(tmp_path, "job.yaml", "missing.yaml")
        os.chown(tmp_path / "job.yaml", 65534, 65534)
        with pytest.raises(ConfigurationError, match=r"job\.yaml: belongs to another user"):
            check_owner(tmp_path, "job.yaml")

    def test_one_consent_does_not_count_for_code_without_a_hash_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: Path
    ) -> None:
        """A run that an older csd-emu began: in one's own directory `--trust` is enough."""
        source = MARKS.format(str(mark)) + "raise RuntimeError('it is imported')\n" + NET
        folder = resumable(tmp_path, source, None)
        os.chown(folder, 65534, 65534)
        with pytest.raises(CheckpointError, match=r"does not say what my_net\.py was.*CSD_EMU_SAFE_DIRECTORIES"):
            resume(folder, tmp_path, trusted=True)
        assert not mark.exists()
        monkeypatch.setenv(SAFE_VARIABLE, str(folder))
        with pytest.raises(CheckpointError, match="does not say what"):
            resume(folder, tmp_path)
        for own in (False, True):
            if own:
                monkeypatch.delenv(SAFE_VARIABLE)
                os.chown(folder, 0, 0)
            mark.unlink(missing_ok=True)
            with pytest.raises(CsdError, match="it is imported"):
                resume(folder, tmp_path, trusted=True)
            assert mark.exists()

    def test_nor_does_a_link_of_ones_own_make_it_ones_own(self, tmp_path: Path) -> None:
        folder, link = resumable(tmp_path, NET, {}), tmp_path / "link"
        link.symlink_to(folder)
        check_owner(link, "job.yaml")
        (tmp_path / "theirs.yaml").touch()
        os.chown(tmp_path / "theirs.yaml", 65534, 65534)
        (folder / "job.yaml").unlink()
        (folder / "job.yaml").symlink_to(tmp_path / "theirs.yaml")
        with pytest.raises(ConfigurationError, match=r"job\.yaml: belongs to another user"):
            check_owner(link, "job.yaml")
        os.chown(folder, 65534, 65534)
        with pytest.raises(ConfigurationError, match=r"link: belongs to another user \(uid 65534\)"):
            load_run(link)
