"""The chart of what each drive holds: a bar for each, of its private records by class."""

from __future__ import annotations

from host.core.partition import HeldRecords
from host.monitoring.charts.chart import Chart, Pane, make_curve

_MOST_DRIVES = 100
_HALF_BAR = 0.4


def held_chart(held: HeldRecords) -> Chart | None:
    """Return the chart; None if no private record was dealt out."""
    if not held.private:
        return None
    shown, sizes = held.counts[:_MOST_DRIVES], [sum(row) for row in held.counts]
    curves = [
        make_curve(
            f"class {name}" if name.isdecimal() else name,
            [point for x, row in enumerate(shown) for point in ((x - _HALF_BAR, row[at]), (x + _HALF_BAR, 0))],
            f"s{at % 8 + 1}",
            pattern=("", "/", "x")[at // 8],
            steps=True,
            fill="stacked",
        )
        for at, name in enumerate(held.classes or ["records"])
    ]
    spread = f"{min(sizes)} to {max(sizes)} records on each of {len(sizes)} drives"
    said = [
        f"Private records of each drive{', by class' if held.classes else ''}: {spread}.",
        *[f"{held.public} public records lie on every drive beside them."] * (held.public > 0),
        *[f"{held.left_out} records lie on no drive."] * (held.left_out > 0),
        *[f"{len(sizes) - len(shown)} more drives are not shown."] * (len(sizes) > len(shown)),
    ]
    return Chart(
        name="held-records",
        title="Records on each drive",
        caption=" ".join(said),
        told=said[0],
        x_title=f"drive, in the array's order (0: {held.drives[0]})",
        panes=[Pane(curves=curves, unit="records", low=0.0)],
        x_range=(-0.6, len(shown) - 0.4),
        whole=True,
        wide=True,
    )
