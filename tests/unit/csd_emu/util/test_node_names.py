import re

from hypothesis import given
from hypothesis import strategies as st

from csd_emu.util.node_names import MAX_COUNTERS, counter_array

ARRAYS = st.from_regex(r"[a-z][a-z0-9-]{0,30}", fullmatch=True)


@given(ARRAYS, ARRAYS, st.integers(0, MAX_COUNTERS - 1))
def test_arrays_that_differ_have_machines_that_differ_in_name(one: str, other: str, number: int) -> None:
    name = counter_array(one, number)
    assert re.fullmatch(r"[a-z][a-z0-9-]{0,30}", name)
    assert name.endswith(f"-counter{number}")
    assert (name == counter_array(other, number)) == (one == other)
