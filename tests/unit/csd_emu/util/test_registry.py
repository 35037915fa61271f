"""Registries: names from sources and entry points, and what is refused."""

from pathlib import Path

import pytest

from csd_emu.config.array_file import ArrayConfig
from csd_emu.config.engine_names import ENGINE
from csd_emu.util.config_files import parse_config
from csd_emu.util.registry import Registry
from firmware_agent.common.errors import ConfigurationError, PluginError
from host.config.plugins import kinds
from host.config.plugins.kinds import SPLIT_POLICY, STRATEGY, TRANSFER_TUNER, TUNER
from tests.support.plugins import install_package

REGISTRIES = [ENGINE, STRATEGY, TUNER, TRANSFER_TUNER, SPLIT_POLICY]
SOURCE = """
KIND = __import__("csd_emu.util.registry").util.registry.Registry("kind", "a.group", "{name}", ("go",))

@KIND.register("one", "The first.")
@KIND.register("two", "The " "second.", offered=False)
class Both:
    def go(self): ...
"""


def package(folder: Path, name: str, **sources: str) -> Registry:
    (folder / name).mkdir()
    for module, source in sources.items():
        (folder / name / f"{module}.py").write_text(source.format(name=name), encoding="utf-8")
    return Registry("kind", "a.group", name, ("go",))


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.word)
def test_what_the_sources_say_is_what_is_imported(registry: Registry) -> None:
    assert registry.built_in
    for name, entry in registry.entries.items():
        if entry.module.startswith("csd_emu.engines.qemu"):
            pytest.importorskip("libvirt")
        kind = registry.load(name)
        assert (kind.__module__, kind.__name__) == (entry.module, entry.class_name)
        registry.check_class(kind, name)
        assert entry.summary.endswith(".")


def test_no_two_registries_are_called_alike() -> None:
    words = [each.word for each in vars(kinds).values() if isinstance(each, Registry)]
    assert len(set(words)) == len(words) > 10


def test_a_class_may_have_several_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    registry = package(tmp_path, "some_kinds", __init__="", both=SOURCE)
    assert registry.built_in == ("one", "two")
    assert registry.offered == ("one",)
    assert registry.entries["two"].summary == "The second."
    assert registry.load("one") is registry.load("two")


def test_a_name_that_is_registered_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    registry = package(tmp_path, "same_kinds", first=SOURCE, second=SOURCE)
    with pytest.raises(PluginError, match=r"'one' is registered twice, in same_kinds.first and same_kinds.second"):
        _ = registry.entries


def test_a_class_that_lacks_a_method_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    registry = package(tmp_path, "bare_kinds", both=SOURCE.replace("def go(self)", "def stay(self)"))
    with pytest.raises(PluginError, match="Both is no kind, go is missing"):
        registry.load("one")


def test_an_engine_of_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from csd_emu.engines import NativeEngine\nclass Board(NativeEngine):\n    pass\n"
    install_package(tmp_path / "site", "board_pkg", source, {ENGINE.group: "board = board_pkg:Board"})
    monkeypatch.syspath_prepend(tmp_path / "site")
    content = {"name": "lab", "engine": "board", "devices": [{"profile": "newport"}]}
    assert parse_config(content, ArrayConfig, "array.yaml").engines == ("board",)
    assert ENGINE.load("board").__name__ == "Board"
    with pytest.raises(ConfigurationError, match=r"engine: engine 'bord' is not known; did you mean 'board'\?"):
        parse_config(content | {"engine": "bord"}, ArrayConfig, "array.yaml")
