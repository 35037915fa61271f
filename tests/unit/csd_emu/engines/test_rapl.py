from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.engines.rapl import RaplMeter

WRAP = 10_000_000


class FakeZone:
    """A counter folder as the kernel's powercap framework shows it."""

    def __init__(self, folder: Path, zone: str, name: str, microjoules: int = 0, wrap: int = WRAP) -> None:
        self.folder, self._wrap, self._value = folder / zone, wrap, microjoules
        self.folder.mkdir(parents=True)
        (self.folder / "name").write_text(f"{name}\n")
        (self.folder / "max_energy_range_uj").write_text(f"{wrap}\n")
        self.add(0)

    def add(self, microjoules: int) -> None:
        self._value = (self._value + microjoules) % self._wrap
        (self.folder / "energy_uj").write_text(f"{self._value}\n")


@given(steps=st.lists(st.integers(WRAP // 4, WRAP - 1), max_size=10), start=st.integers(0, WRAP - 1))
def test_joules_add_up_over_a_counter_that_wraps(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], start: int
) -> None:
    folder = tmp_path_factory.mktemp("powercap")
    zone = FakeZone(folder, "intel-rapl:0", "package-0", start)
    meter = RaplMeter.open(folder)
    assert meter is not None
    for number, step in enumerate(steps):
        zone.add(step)
        assert meter.joules() == pytest.approx(sum(steps[: number + 1]) / 1e6)


def test_packages_are_counted_and_their_parts_are_not(tmp_path: Path) -> None:
    packages = [FakeZone(tmp_path, f"intel-rapl:{n}", f"package-{n}") for n in range(2)]
    others = [
        FakeZone(tmp_path, "intel-rapl:0:0", "core"),
        FakeZone(tmp_path, "intel-rapl:0:1", "dram"),
        FakeZone(tmp_path, "intel-rapl:2", "psys"),
        FakeZone(tmp_path, "intel-rapl-mmio:0", "package-0"),
    ]
    meter = RaplMeter.open(tmp_path)
    assert meter is not None
    for zone in (*packages, *others):
        zone.add(3_000_000)
    assert meter.joules() == 6.0


def test_without_counters_there_is_no_meter(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        assert RaplMeter.open(folder) is None


def test_a_counter_that_may_not_be_read_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeZone(tmp_path, "intel-rapl:0", "package-0")
    read_text = Path.read_text

    def refuse(path: Path) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return read_text(path)

    monkeypatch.setattr(Path, "read_text", refuse)
    assert RaplMeter.open(tmp_path) is None


def test_a_damaged_counter_is_absent(tmp_path: Path) -> None:
    zone = FakeZone(tmp_path, "intel-rapl:0", "package-0")
    (zone.folder / "energy_uj").write_text("many\n")
    assert RaplMeter.open(tmp_path) is None
