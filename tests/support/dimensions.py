"""Of what physical dimension an expression's answer is, by the names of its metrics and what is done with them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from csd_lab.generate import prometheus_rules as rules
from csd_lab.generate.dashboards.panels import Unit
from host.monitoring.metrics.metric import Metric
from host.monitoring.metrics.metric_names import METRICS

# Base -> exponent; bases with exponent 0 are left out. Wall seconds are not device seconds: one over the other costs.
Dimension = dict[str, int]
_OF_UNIT: dict[str, Dimension] = {
    "seconds": {"s": 1},
    "bytes": {"B": 1},
    "joules": {"J": 1},
    "watts": {"J": 1, "s": -1},
    "ratio": {},
}
_OF_NAME: dict[str, Dimension] = {
    "csd_train_samples_total": {"record": 1},
    "csd_batch_size": {"record": 1},
    "csd_global_batch_size": {"record": 1},
    "csd_calibrated_records_per_second": {"record": 1, "s": -1},
    "csd_possible_records_per_second": {"record": 1, "s": -1},
    "csd_wall_seconds_total": {"wall": 1},
    "csd_host_commands_total": {"command": 1},
}
# Which units may stand beside a panel of a dimension.
UNITS: tuple[tuple[Dimension, frozenset[Unit]], ...] = (
    ({}, frozenset({Unit.NUMBER, Unit.SHARE})),
    ({"s": 1}, frozenset({Unit.SECONDS})),
    ({"wall": 1}, frozenset({Unit.SECONDS})),
    ({"wall": 1, "s": -1}, frozenset({Unit.WALL_PER_DEVICE_SECOND})),
    ({"B": 1}, frozenset({Unit.BYTES})),
    ({"B": 1, "s": -1}, frozenset({Unit.BYTES_PER_SECOND})),
    ({"J": 1}, frozenset({Unit.JOULES})),
    ({"J": 1, "s": -1}, frozenset({Unit.WATTS})),
    ({"record": 1}, frozenset({Unit.RECORDS})),
    ({"record": 1, "s": -1}, frozenset({Unit.RECORDS_PER_SECOND})),
    ({"record": 1, "wall": -1}, frozenset({Unit.RECORDS_PER_SECOND})),
    ({"J": 1, "record": -1}, frozenset({Unit.JOULES_PER_RECORD})),
    ({"command": 1, "s": -1}, frozenset({Unit.COMMANDS_PER_SECOND})),
    ({"B": 1, "record": -1}, frozenset({Unit.BYTES_PER_RECORD})),
)
_NAME = re.compile(r"\b(?:array|device|device_phase|server|hypervisor):[a-z0-9_:]+|\bcsd_[a-z0-9_]+|\bALERTS\b|\bup\b")

# A join with what is known of a host or drive: its value is 1.
_JOIN = re.compile(r" \* on \([^)]*\) group_left \(\w+\) csd_\w+_info(\{[^}]*\})?")


def units_of(expression: str) -> frozenset[Unit]:
    """Return the units that a panel of this expression may have; none if its dimension has no unit."""
    found = dimension(expression)
    return next((units for known, units in UNITS if known == found), frozenset())


def dimension(expression: str) -> Dimension:
    """Return the dimension of an expression's values."""
    text = re.split(r" and on | or vector", _JOIN.sub("", expression))[0].strip()
    if re.match(r"count\b", text):
        return {}
    above, *below = _split(text, " / ")
    result = _factor(above)
    for each in below:
        result = _over(result, _factor(re.sub(r"^on \([^)]*\)( group_right \(\))?", "", each)))
    return result


def _factor(text: str) -> Dimension:
    (name, *others) = dict.fromkeys(_NAME.findall(re.sub(r"\{[^}]*\}|(?:by|on) \([^)]*\)", "", text)))
    assert not others, f"{text} has several metrics"
    # A quantile of a histogram is of what was put into it; any other rate() is per second of wall time.
    rate = "rate(" in text and "histogram_quantile" not in text
    return _over(_of_name(name), {"wall": 1} if rate else {})


def _over(above: Mapping[str, int], below: Mapping[str, int]) -> Dimension:
    exponents = {base: above.get(base, 0) - below.get(base, 0) for base in above.keys() | below.keys()}
    return {base: exponent for base, exponent in exponents.items() if exponent}


def _of_name(name: str) -> Dimension:
    for rule in rules.RECORDED:
        if name == rule.name:
            return dimension(rule.expression)
    if name in ("ALERTS", "up"):
        return {}
    metric = next(each for each in METRICS if name in _samples(each))
    if name.endswith("_count"):
        return {}
    return _OF_NAME.get(metric.name, _OF_UNIT.get(metric.unit, {}))


def _samples(metric: Metric) -> set[str]:
    endings = ("_bucket", "_count", "_sum") if metric.kind == "histogram" else ("",)
    return {metric.name + ending for ending in endings}


def _split(text: str, operator: str) -> list[str]:
    """Split at an operator that is in no parentheses."""
    parts, depth, begin = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0 and text.startswith(operator, place):
            parts.append(text[begin:place])
            begin = place + len(operator)
    return [*parts, text[begin:]]
