from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from host.fleet.admission import MOST_OF_ONE, STRANGER, Admission

DEVICES = ("csd-00", "csd-01")
names = st.sampled_from([*DEVICES, "", "a stranger", "another"])


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@given(moves=st.lists(st.tuples(names, st.booleans()), max_size=200))
def test_no_more_wait_at_the_door_than_may_and_strangers_take_no_devices_place(moves: list[tuple[str, bool]]) -> None:
    door, inside = Admission(DEVICES, Clock()), Counter[str]()
    for name, enters in moves:
        if not enters:
            if inside[name]:
                door.leave(name)
                inside[name] -= 1
        elif door.enter(name):
            inside[name] += 1
        assert inside.total() <= door.most
        assert all(inside[device] <= MOST_OF_ONE for device in DEVICES)
    for device in DEVICES:
        assert door.enter(device) == (inside[device] < MOST_OF_ONE)


def test_who_is_refused_again_and_again_waits_ever_longer_and_nobody_else() -> None:
    clock = Clock()
    door = Admission(DEVICES, clock)
    waits = [door.refuse("csd-00") for _ in range(40)]
    assert waits[:3] == [0.0] * 3
    assert waits == sorted(waits)
    assert waits[-1] == 8.0
    assert door.refuse("csd-01") == 0.0
    door.accept("csd-00")
    assert door.refuse("csd-00") == 0.0
    for _ in range(20):
        door.refuse("csd-00")
    clock.now = 61.0
    assert door.refuse("csd-00") == 0.0


def test_refusals_wait_in_places_of_their_own_and_strangers_take_no_devices() -> None:
    door = Admission(DEVICES, Clock())
    assert [door.detain("csd-00") for _ in range(3)] == [True, True, False]
    assert [door.detain("a stranger") for _ in range(20)].count(True) == door.most - MOST_OF_ONE * len(DEVICES)
    assert door.enter("csd-00")
    assert door.enter(STRANGER)
    assert door.detain("csd-01")
    door.release("csd-00")
    assert door.detain("csd-00")


def test_a_device_that_dials_without_end_is_let_in_once_a_second() -> None:
    clock = Clock()
    door = Admission(DEVICES, clock)
    waits = [door.pace("csd-00") for _ in range(1000)]
    assert waits.count(0.0) == 30
    assert set(waits) == {0.0, 1.0}
    assert door.pace("csd-01") == 0.0
    clock.now = 61.0
    assert door.pace("csd-00") == 0.0
