import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.image import ImageStore, extra_packages, image_store
from csd_emu.image.extra_packages import image_distributions, lock_packages
from csd_emu.image.image_recipe import image_folder, load_recipe
from csd_emu.image.wheels import LockedWheels, Requirement, read_lock
from firmware_agent.common.errors import ConfigurationError, CsdError, ImageError

OWN = [Requirement("numpy==2.4.6", ("1" * 64,)), Requirement("typing-extensions==4.16.0", ("2" * 64,))]
FOUND = [("tiny", "1.2"), ("Typing_Extensions", "4.16.0"), ("needs-it", "0.1")]


class Pip:
    """Finds these packages, or says that it cannot; notes its arguments."""

    def __init__(self, found: Sequence[tuple[str, str]] = FOUND, says: str = "") -> None:
        self.found, self.says = found, says
        self.asked: list[list[str]] = []

    def __call__(self, command: list[str | Path], **_: object) -> "subprocess.CompletedProcess[str]":
        words = [str(word) for word in command]
        self.asked.append(words)
        items = [
            {
                "metadata": {"name": name, "version": version},
                "download_info": {"archive_info": {"hashes": {"sha256": f"{place:064d}"}}},
            }
            for place, (name, version) in enumerate(self.found, 3)
        ]
        constraints = Path(words[words.index("--constraint") + 1]).read_text().split()
        assert constraints == [requirement.pin for requirement in OWN]  # what the image has stays
        Path(words[words.index("--report") + 1]).write_text(json.dumps({"install": items}))
        return subprocess.CompletedProcess(words, bool(self.says), "", self.says)


def wheels_in(folder: Path) -> LockedWheels:
    lock = folder / "requirements.lock"
    lock.write_text("".join(requirement.text for requirement in OWN))
    return LockedWheels(lock, "3.11", ("manylinux_2_28_aarch64",))


def use(monkeypatch: pytest.MonkeyPatch, pip: Pip) -> Pip:
    monkeypatch.setattr(extra_packages, "check_pip", lambda: None)
    monkeypatch.setattr(subprocess, "run", pip)
    return pip


def test_what_pip_finds_is_locked_once_beside_what_the_image_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip, own = use(monkeypatch, Pip()), wheels_in(tmp_path)
    wheels = lock_packages(own, ["tiny>=1"], tmp_path / "downloads")
    more = [Requirement("needs-it==0.1", (f"{5:064d}",)), Requirement("tiny==1.2", (f"{3:064d}",))]
    assert read_lock(wheels.lock_file) == OWN + more
    assert {"tiny>=1", "--only-binary=:all:", "--dry-run", "manylinux_2_28_aarch64"} <= set(pip.asked[0])
    pip.found = [("tiny", "1.3")]  # a newer release is no news to an image that has one
    assert lock_packages(own, ["tiny>=1"], tmp_path / "downloads") == wheels
    assert len(pip.asked) == 1


@given(st.permutations(["a", "b>=1", "c==2"]))
def test_the_order_of_packages_is_of_no_account(tmp_path_factory: pytest.TempPathFactory, packages: list[str]) -> None:
    folder = tmp_path_factory.mktemp("order")
    with pytest.MonkeyPatch.context() as patch:
        pip = use(patch, Pip())
        first = lock_packages(wheels_in(folder), ["a", "b>=1", "c==2"], folder)
        assert lock_packages(wheels_in(folder), packages, folder) == first
        assert lock_packages(wheels_in(folder), packages[1:], folder) != first
    assert len(pip.asked) == 2


def test_without_packages_nothing_is_asked_or_written(tmp_path: Path) -> None:
    own = wheels_in(tmp_path)
    assert lock_packages(own, [], tmp_path / "downloads") is own
    assert not (tmp_path / "downloads").exists()


@pytest.mark.parametrize(
    ("says", "kind", "remedy"),
    [
        ("WARNING: Retrying after connection broken\nERROR: No matching distribution found", ImageError, "the network"),
        (
            "ERROR: Cannot install numpy<2 because of this.\nERROR: ResolutionImpossible: for help",
            ConfigurationError,
            r"Cannot install numpy<2 because of this\.\); what the image has stays as it is \(numpy==2\.4\.6, typing-",
        ),
        ("ERROR: No matching distribution found for tiny", ConfigurationError, "tiny.*has a wheel of pure Python"),
        ("Segmentation fault", ConfigurationError, "Segmentation fault"),
    ],
)
def test_what_pip_cannot_find_is_said_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, kind: type[CsdError], remedy: str
) -> None:
    use(monkeypatch, Pip(says=says))
    with pytest.raises(kind, match=f"image.packages: tiny, other: .*{remedy}") as caught:
        lock_packages(wheels_in(tmp_path), ["tiny", "other"], tmp_path / "downloads")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    assert not (tmp_path / "downloads").exists()


def test_an_image_with_other_packages_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, lock = load_recipe(image_folder()), tmp_path / "packages.lock"
    keys = {recipe.layer_hash(): recipe.image_hash(tmp_path)}
    for version in ("1.2", "1.3"):
        more = Requirement(f"tiny=={version}", ("3" * 64,))
        lock.write_text(recipe.wheels.lock_file.read_text() + more.text)
        for module in (image_store, extra_packages):
            monkeypatch.setattr(module, "lock_packages", lambda wheels, *_: replace(wheels, lock_file=lock))
        store = ImageStore(tmp_path / "images", packages=["tiny"], agent=tmp_path)
        keys[store.key] = store.describe().hash
    assert len(keys) == len(set(keys.values())) == 3
    assert {"tiny", "torch"} <= image_distributions(["tiny"], tmp_path)
