from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.config.participation import ParticipationSection, choose_devices

sections = st.builds(ParticipationSection, share=st.floats(1e-6, 1)) | st.builds(
    ParticipationSection, count=st.integers(1, 50)
)
arrays = st.integers(1, 40).map(lambda n: [f"csd-{i:02d}" for i in range(n)])


@given(devices=arrays, section=sections, seed=st.integers(0, 2**31 - 1), number=st.integers(1, 10**5))
def test_chosen_and_reserves_are_all_devices_once(
    devices: list[str], section: ParticipationSection, seed: int, number: int
) -> None:
    choice = choose_devices(devices, section, seed, number)
    assert sorted([*choice.chosen, *choice.reserves]) == devices
    assert list(choice.chosen) == sorted(choice.chosen)
    assert 1 <= len(choice.chosen) == section.participants(len(devices))
    assert choose_devices(devices, section, seed, number) == choice


@pytest.mark.parametrize(
    ("section", "devices", "want"),
    [
        ({"share": 1.0}, 3, 3),
        ({"share": 0.5}, 3, 2),
        ({"share": 0.1}, 30, 3),
        ({"share": 0.01}, 3, 1),
        ({"count": 2}, 3, 2),
        ({"count": 9}, 3, 3),
    ],
)
def test_how_many_take_part(section: dict[str, float], devices: int, want: int) -> None:
    assert ParticipationSection.model_validate(section).participants(devices) == want


def test_rounds_and_seeds_draw_differently_and_everybody_is_drawn_as_often() -> None:
    devices = [f"csd-{i:02d}" for i in range(8)]
    section = ParticipationSection(count=2)
    draws = [choose_devices(devices, section, 0, number).chosen for number in range(1, 2001)]
    counts = Counter(device for chosen in draws for device in chosen)
    assert min(counts.values()) > 400  # 500 expected, standard deviation 19
    assert max(counts.values()) < 600
    assert len(set(draws)) == 28
    assert draws[:20] != [choose_devices(devices, section, 1, number).chosen for number in range(1, 21)]


def test_all_devices_are_chosen_by_default_in_order() -> None:
    devices = ["b-00", "a-00", "c-00"]
    assert choose_devices(devices, ParticipationSection(share=1.0), 3, 1).chosen == ("b-00", "a-00", "c-00")
