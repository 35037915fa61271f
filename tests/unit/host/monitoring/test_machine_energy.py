import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.monitoring.machine_energy import MachineMeter
from tests.support.records import round_record


class Counter:
    """A meter that shows one reading after the other, and then is gone."""

    def __init__(self, *readings: float) -> None:
        self.readings = list(readings)

    def joules(self) -> float:
        if not self.readings:
            raise OSError("the counter is gone")
        return self.readings.pop(0)


RECORD = round_record([])


def test_without_a_meter_records_stay_as_they_are() -> None:
    assert MachineMeter(None).metered(RECORD) is RECORD


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=8))
def test_each_round_gets_what_was_spent_in_it(spent: list[float]) -> None:
    meter = MachineMeter(Counter(*(sum(spent[: number + 1]) for number in range(len(spent)))))
    rounds = [meter.metered(RECORD) for _ in spent]
    assert [record.machine_joules for record in rounds] == pytest.approx(spent, rel=1e-6, abs=1e-6)
    assert msgspec.structs.replace(rounds[0], machine_joules=None) == RECORD
    # From here on the counter is gone: the run goes on without it.
    assert meter.metered(RECORD) is RECORD
    assert meter.metered(RECORD) is RECORD
