"""The picture of the layers and the directory guide (`csd_lab.generate.development`)."""

import re

from hypothesis import given
from hypothesis import strategies as st

from csd_lab.generate.development import Row, draw_layers, label, row_of

ROWS: list[Row] = [
    ("csd_lab",),
    ("host.__main__", "host.cli"),
    ("host.core",),
    ("firmware_agent",),
    ("firmware_agent.common",),
]
PAIRS = st.sets(st.tuples(*[st.integers(0, len(ROWS) - 1)] * 2).filter(lambda pair: pair[0] != pair[1]))


@given(PAIRS)
def test_every_import_is_one_mark_and_those_that_point_up_are_rings(pairs: set[tuple[int, int]]) -> None:
    svg = draw_layers(ROWS, pairs)
    marks = re.findall(r'<circle cx="(\d+)" cy="(\d+)" r="5" fill="(none)?', svg)
    assert len(marks) == len(pairs) == len({mark[:2] for mark in marks})
    assert sum(1 for *_, ring in marks if ring) == sum(1 for one, other in pairs if other < one)


def test_a_module_belongs_to_the_longest_name() -> None:
    assert row_of("firmware_agent.common.wire", ROWS) == 4
    assert row_of("firmware_agent.agent", ROWS) == 3
    assert row_of("host.cli", ROWS) == 1
    assert row_of("host.climate", ROWS) is None


def test_a_row_is_called_by_its_packages() -> None:
    assert label(("host.__main__", "host.cli")) == "host.cli"
    assert label(("host.a", "host.b")) == "host.a, b"
