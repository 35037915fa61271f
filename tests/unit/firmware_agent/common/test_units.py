import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common import units
from firmware_agent.common.errors import ConfigurationError, UnitError

TABLES = {
    "bytes": (units.BYTES, "2 GiB"),
    "seconds": (units.SECONDS, "50 us"),
    "bytes per second": (units.BYTES_PER_SECOND, "500 MB/s"),
    "hertz": (units.HERTZ, "1.2 GHz"),
}
tables = st.sampled_from(list(TABLES.values()))
amounts = st.floats(min_value=0, max_value=1e290, allow_nan=False)


@given(table=tables, amount=amounts, data=st.data(), gap=st.sampled_from(["", " ", "  "]))
def test_every_number_with_every_unit_becomes_base_units(
    table: tuple[dict[str, float], str], amount: float, data: st.DataObject, gap: str
) -> None:
    known, example = table
    unit = data.draw(st.sampled_from(list(known)))
    assert units.parse_quantity(f"{amount!r}{gap}{unit}", known, example) == amount * known[unit]


@pytest.mark.parametrize(
    ("text", "table", "value"),
    [
        ("500 MB/s", units.BYTES_PER_SECOND, 5e8),
        ("80 Mbit/s", units.BYTES_PER_SECOND, 1e7),
        ("2 GiB", units.BYTES, 2**31),
        ("50us", units.SECONDS, 50e-6),
        ("1_000 kB", units.BYTES, 1e6),
        (".5 min", units.SECONDS, 30.0),
        ("1.2e3 MHz", units.HERTZ, 1.2e9),
    ],
)
def test_examples(text: str, table: dict[str, float], value: float) -> None:
    assert units.parse_quantity(text, table, "x") == pytest.approx(value, rel=1e-15)


def test_anything_else_is_refused_with_an_example(subtests: pytest.Subtests) -> None:
    for text in [
        "",
        "MB",
        "5",
        "5 MiBi",
        "5 mB",
        "5 s",
        "5 MB/s",
        "nan B",
        "inf B",
        "-1 B",
        "+-1 B",
        "1e400 B",
        "1,5 MB",
        "1.5.3 MB",
        "1__0 B",
        "0x10 B",
        "5 MB 3 kB",
        "five B",
        "٣ B",
        5,
        5.0,
        None,
        True,
        ["5 B"],
        {"B": 5},
    ]:
        with subtests.test(text=text):
            with pytest.raises(UnitError, match="2 GiB") as caught:
                units.parse_quantity(text, units.BYTES, "2 GiB")
            assert repr(text) in str(caught.value)
            assert isinstance(caught.value, ConfigurationError)
            assert caught.value.exit_code == 2


def test_a_unit_of_another_kind_is_named_with_those_that_fit() -> None:
    with pytest.raises(UnitError, match=r"unit 'MB'.*ns, us"):
        units.parse_quantity("5 MB", units.SECONDS, "5 s")
    with pytest.raises(UnitError, match="has no unit"):
        units.parse_quantity("5", units.SECONDS, "5 s")


@given(text=st.text(max_size=30) | st.from_regex(r"[0-9._eE+-]{0,10} ?[kMGi]{0,2}(B|s|Hz|bit/s)?", fullmatch=True))
def test_any_text_gives_a_finite_amount_or_a_unit_error(text: str) -> None:
    for known, example in TABLES.values():
        with contextlib.suppress(UnitError):
            value = units.parse_quantity(text, known, example)
            assert math.isfinite(value)
            assert value >= 0


@given(size=st.floats(min_value=0, max_value=1e15))
def test_a_printed_size_is_within_its_last_digit(size: float) -> None:
    text = units.format_bytes(size)
    number, unit = text.split()
    assert abs(float(number) * units.BYTES[unit] - size) <= 0.0501 * units.BYTES[unit] + (0.5 if unit == "B" else 0)
    assert float(number) <= 1000
